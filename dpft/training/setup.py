"""Prepare a run: data, model, mechanism, clipper, key, and canaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpft import runs
from dpft.config.errors import ModelError
from dpft.config.schema import Run, warmup_steps
from dpft.models.load import stored_weights
from dpft.parallel.cohort import SingleProcess, TrainingCohort
from dpft.privacy import keys
from dpft.privacy.noise import NOISE_VERSION
from dpft.runs.ledger import LedgerContents
from dpft.tasks.base import Task, fingerprint
from dpft.tasks.objectives.base import Instance, Objective, cut_in_encoding
from dpft.tasks.objectives.encoding import encoded
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.objectives.mixed import Mixed, check_blank, check_supported
from dpft.tasks.objectives.records import Record
from dpft.tasks.own import contents_of
from dpft.tasks.units import Records, TrainingSet, Users
from dpft.training.assembly import (
    TrainingParts,
    assemble,
    compiles,
    deciding_parts,
    fixed_shapes,
)
from dpft.training.devices import all_round_like, device_of
from dpft.training.held_out import HeldOut, check_scored, held_out_records, must_be_apart
from dpft.training.mechanisms import Data, read_data
from dpft.training.progress import Progress

if TYPE_CHECKING:
    from dpft.audit.exposure import Planted
    from dpft.audit.stage import Auditor, Stage


@dataclass(frozen=True)
class Prepared:
    """All that a run needs for its steps.

    Attributes:
        records: trained on, planted secrets included.
        units: the same as units of privacy.
        key: decides batches, noise and dropout; secret in a private run (`dpft.runs.run_key`).
        header: of the ledger; the run cannot continue where any of it differs.
        data: keyed fingerprint of the records.
        model: keyed fingerprint of the model that the run starts from.
        weights: SHA-256 of the weight files, on the first rank; None if weights are random.
        instances: questions that the trained model answers.
        planted: secrets among the records, if any.
        own: code of other packages that a step's sum follows from.
        auditor: canaries in slots after the units, if any.
        held_out: records for evaluation during the training, if any.
        compiled: whether microbatches are added up by compiled programs.
        ledger: what the ledger holds before the first step, if there is one.
    """

    task: Task
    parts: TrainingParts
    objective: Objective
    records: Sequence[Record]
    units: TrainingSet
    key: bytes
    header: Mapping[str, Any]
    data: str
    model: str
    weights: str | None
    instances: Sequence[Instance]
    planted: Planted | None
    auditor: Auditor | None
    cohort: TrainingCohort
    own: Mapping[str, str]
    held_out: HeldOut | None
    compiled: bool
    ledger: LedgerContents | None = None


def prepare(
    run: Run,
    task: Task | Data,
    directory: runs.RunDirectory | None,
    progress: Progress,
    cohort: TrainingCohort | None = None,
) -> Prepared:
    """Read, load, encode and check, so that what cannot work is reported before the first step."""
    cohort = cohort or SingleProcess()
    data = task if isinstance(task, Data) else read_data(run, task, progress)
    task, records, owners, instances = data.task, data.records, data.owners, data.instances
    evaluated = held_out_records(run.evaluate, task)
    if must_be_apart(run, task):
        check_scored(task, run.decode.split, [one.record for one in instances])
    audit: Stage | None = None
    if run.audit.active:
        from dpft.audit.stage import Stage

        audit = Stage(run, task)
    device = device_of(run.device)
    if run.precision != "float32":
        check_supported(run.precision, device)
        # Its backward may give no numbers for a query that may attend to nothing, as padding on
        # the left produces (pytorch#196678); the other kernels for masks do.
        torch.backends.cuda.enable_cudnn_sdp(False)
    with progress.phase("loading", None, note=run.model.name):
        parts = assemble(run, task, data.mechanism, device, cohort)
    loaded, clipper, mechanism = parts.loaded, parts.clipper, parts.mechanism
    if owners is not None:
        clipper.check_rows(task.records_per_user)
    objective = task.objective(loaded)
    held_out = _held_out(run, task, objective, evaluated, instances) if evaluated else None

    tokenizer = loaded.tokenizer_digest()  # with the template that a chat's objective sets
    planted = None if audit is None else audit.plant(loaded)
    if planted is not None:
        records = [*records, *planted.records]
    plain = None if planted is not None else task.known_fingerprint
    plain = plain or fingerprint(records, owners)
    # The number of records of all users together is private: not for a log file.
    count = len(records) if owners is None or progress.console.is_terminal else None
    with progress.phase("encoding", count) as advance:
        examples = encoded(objective, records, advance)
    if loaded.tokenizer_digest() != tokenizer:
        raise ModelError(
            f"encoding the records changed the tokenizer of {run.model.name}, which is saved with "
            "the model and would tell of them without any noise; expected an objective that leaves "
            "it alone: add tokens where the model is made"
        )
    rising = warmup_steps(run.optim, mechanism.steps)
    if rising >= mechanism.steps > 0:
        progress.warn(
            f"the learning rate rises for {rising:,} steps and the run has {mechanism.steps:,}: it "
            "ends before the rate that was asked for; see optim.warmup_steps and warmup_ratio"
        )
    if progress.may_tell(mechanism.noise_multiplier > 0):
        for remark in filter(None, [*task.remarks(), cut_in_encoding(examples)]):
            progress.warn(remark)

    stored, held = keys.public_key(run.seed), None
    if directory is not None and mechanism.private:
        held = runs.check_ledger(directory.path, mechanism.steps)
        # Also for a run of no steps, which needs no noise: a plain fingerprint is a release.
        stored = directory.noise_key(run.privacy.noise_seed, held)
    stored = cohort.from_first(stored)  # only the first rank has the folder
    compiled = compiles(run, device)
    shapes = fixed_shapes(run, parts, compiled)
    own = deciding_parts(run)
    header: dict[str, Any] = {
        "mechanism": mechanism.to_dict(),
        "data": runs.keyed_fingerprint(stored, plain),
        "model": runs.keyed_fingerprint(stored, f"model:{parts.digest.hex()}"),
        "key": runs.key_fingerprint(stored),
        "unit": task.unit_in_words,
        "noise_version": NOISE_VERSION,
        # Another machine rounds differently: the same noise on a slightly different sum would be a
        # second release that is not counted.
        "compute": {
            **all_round_like(device, cohort),
            **cohort.layout,  # sums of shares are added up in another order
            **({} if shapes is None else {"shapes": "fixed"}),
            # There `auto` may find another number: on a GPU with more memory.
            **({"microbatch_tokens": run.optim.tokens} if device.type == "cuda" else {}),
            **({"step": "compiled"} if compiled else {}),
            **({"plugins": own} if own else {}),
        },
    }
    if clipper.policy.rule is not None:  # the groups that each step's thresholds belong to
        header["groups"] = [group.name for group in clipper.groups]
    key = stored
    if directory is not None and mechanism.private and run.privacy.noise_seed is None:
        key = runs.run_key(stored, held, header, directory.config_hash)
    key = cohort.from_first(key)  # only the first rank has the ledger

    trained = objective if run.precision == "float32" else Mixed(objective)
    units: TrainingSet = Records(trained, examples, shapes)
    if owners is not None:
        units = Users(trained, examples, owners, task.records_per_user, key, shapes)
    if mechanism.max_batch is not None:
        progress.say(
            f"every step computes {mechanism.max_batch:,} {task.unit_noun}s of "
            f"{objective.widest()[0]} positions, drawn or not (sampling=truncated_poisson)"
        )
    if parts.pipeline is None:
        check_blank(trained, loaded.model, clipper, run.precision, cohort.sharded)
        if cohort.sharded:
            from dpft.parallel.sharded import reshard

            reshard(loaded.model)
    if mechanism.private:
        whole = loaded.model if parts.pipeline is None else parts.pipeline.stages
        check_independence(units, whole, clipper, run.optim.tokens, parts.pipeline)
    auditor = None
    if audit is not None:
        auditor = audit.auditor(loaded, objective, records[0], clipper, mechanism, key)
    return Prepared(
        task=task,
        parts=parts,
        objective=objective,
        records=records,
        units=units,
        key=key,
        header=header,
        data=header["data"],
        model=header["model"],
        weights=stored_weights(run.model) if cohort.rank == 0 else None,
        instances=instances,
        planted=planted,
        auditor=auditor,
        cohort=cohort,
        own=own,
        held_out=held_out,
        compiled=compiled,
        ledger=held,
    )


def _held_out(
    run: Run,
    task: Task,
    objective: Objective,
    records: Sequence[Record],
    instances: Sequence[Instance],
) -> HeldOut:
    settings, shared = run.evaluate, False
    if settings.file is not None:
        scored = contents_of(one.record for one in instances)
        shared = bool(np.isin(contents_of(records), scored).any())
    public = settings.public or (settings.file is None and task.published)
    return HeldOut(settings, objective, records, public, run.optim.tokens, shared)
