"""The record of a trained run: what was done, what it cost, and what is guaranteed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft import runs
from dpft.config import foreign
from dpft.config.flags import Flag, Stored, flag
from dpft.config.published import is_other_size
from dpft.config.schema import Run
from dpft.models.hub import hub_name, pipeline_of
from dpft.models.nf4 import count
from dpft.privacy.clipping import CLIP_FUNCTIONS
from dpft.privacy.guarantee import guarantee
from dpft.runs.atomic import sha256_file
from dpft.runs.environment import peak
from dpft.runs.lineage import lineage_caveats
from dpft.tasks import TASKS
from dpft.tasks.task import Task

if TYPE_CHECKING:
    from dpft.training.setup import Prepared


def make_record(prepared: Prepared, seconds: float, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record after training, without scores: sections of `dpft.runs.RunRecord`."""
    run, task, loaded = prepared.run, prepared.task, prepared.parts.loaded
    mechanism = prepared.parts.mechanism
    parameters = list(loaded.model.parameters())
    explicit = run.privacy.noise_seed
    counts = {"train": len(prepared.records)}
    if task.unit_noun != "record":
        # How many records there are depends on one user by more than the guarantee covers.
        counts = {f"training {task.unit_noun}s": mechanism.dataset_size - run.audit.gradients}
    found, own, taken = runs.environment(), own_parts(run), list[str]()
    if task.limit_train is not None:
        taken.append(
            f"trained on the first {task.limit_train} records of a file: one record more before "
            "them displaces another, so the guarantee is for these records as they were taken"
        )
    return {
        "stage": "trained",
        "dpft": found["dpft"],
        "config": run.recorded(),  # a record may travel: no folders
        "config_hash": runs.config_hash(run.identity()),
        **({"origin": dict(run.origin)} if run.origin else {}),
        "environment": found,
        **({"plugins": own} if own else {}),
        "seeds": {"seed": run.seed, "noise": explicit},
        "dataset": {
            "task": task.name,
            "source": task.location[0],
            "hub_revision": prepared.revision,
            "fingerprint": prepared.header["data"],
            "counts": counts,
        },
        "model": {
            "base_model": runs.base_model(run.model.path),
            "hub_model": hub_name(run.model.path) if run.model.init != "scratch" else None,
            **prepared.weights,
            "pipeline": pipeline_of(task.needs, loaded.model.config),
            "adaptation": run.adapt.name,
            "flags": list(loaded.flags),
            "parameters": count(loaded.model),
            "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        },
        "mechanism": mechanism.to_dict() if mechanism.private else None,
        "privacy": guarantee(
            mechanism,
            noun=task.unit_noun,
            unit=task.unit_in_words,
            # Delta is compared with the real units: canaries are no records.
            size=mechanism.dataset_size - run.audit.canaries,
            noise_seed=explicit,
            audit=measured.get("audit"),
            caveats=[*taken, *run.audit.caveats(task.unit_noun), *lineage_caveats(loaded.flags)],
        ).to_dict(),
        "training": {
            "steps": mechanism.steps,
            "seconds": seconds,
            "peak_memory_bytes": peak(str(loaded.model.device)),
            "device": str(loaded.model.device),
            **prepared.cohort.layout,
        },
        "flags": [
            *loaded.flags,
            *task.flags(),
            *_size_flags(run, task, len(prepared.records) - run.audit.planted),
            *run.audit.flags(),
        ],
        **measured,
    }


def _size_flags(run: Run, task: Task, count: int) -> list[Stored]:
    """Flag training records that are a part of a published set, unless another flag does."""
    published = run.task.get("train_size")
    flagged = task.synthetic is not None or task.limit_train is not None
    if published is None or flagged or not task.published or task.location[0] == "sample":
        return []
    other = is_other_size(count, published)
    return [flag(Flag.TRAIN_SIZE, size=count, published=published)] if other else []


def own_parts(run: Run) -> list[dict[str, str]]:
    """Return where each part that is not dpft's comes from, and what its code was."""
    task = str(run.task["name"])
    asked = [] if task in TASKS else [("task", task)]
    if run.clip.private:
        if run.clip.clip_function not in CLIP_FUNCTIONS:
            asked.append(("clip function", run.clip.clip_function))
        if run.clip.own_groups:
            asked.append(("clipping style", run.clip.groups))
    return [foreign.origin(kind, path) for kind, path in asked]


def deciding_parts(run: Run) -> dict[str, str]:
    """Return code and templates of the user that a step's sum follows from, for the ledger."""
    found = {
        f"{part['kind']} {part['name']}": f"{part['package']} {part['version']} {part['sha256']}"
        for part in own_parts(run)
    }
    template = run.task.get("template", "auto") if run.task["name"] == "chat" else "auto"
    if template not in ("auto", "plain"):
        found["chat template"] = sha256_file(Path(template))
    return found
