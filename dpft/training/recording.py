"""The record of a trained run: what was done, what it cost, and what is guaranteed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dpft import runs
from dpft.config.audit import Audit
from dpft.config.checks import is_other_size
from dpft.config.schema import Run
from dpft.privacy import Mechanism
from dpft.runs import memory
from dpft.runs.lineage import ancestral_caveats
from dpft.runs.shown import down, stated, stated_by, up, weakness
from dpft.tasks.base import Task
from dpft.training.setup import Prepared


def make_record(
    run: Run,
    prepared: Prepared,
    directory: runs.RunDirectory,
    seconds: float,
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """The record after training, without scores: the sections of `dpft.runs.RunRecord`.

    Args:
        run: the settings.
        prepared: what was trained on what, and under which guarantee.
        directory: the run's folder.
        seconds: how long the steps took.
        measured: further sections of the record, such as an audit's.
    """
    task, loaded = prepared.task, prepared.parts.loaded
    mechanism = prepared.parts.mechanism
    parameters = list(loaded.model.parameters())
    epsilon = mechanism.epsilons() if mechanism.private else None
    explicit = run.privacy.noise_seed
    counts = {"train": len(prepared.records)}
    if task.unit_noun != "record":
        # How many records there are depends on one user by more than the guarantee covers.
        counts = {f"training {task.unit_noun}s": mechanism.dataset_size - run.audit.slots}
    return {
        "stage": "trained",
        "dpft": runs.code_version(),
        "config": run.identity(),  # a record may travel: not where runs lie
        "config_hash": directory.config_hash,
        "environment": runs.environment(),
        "seeds": {"seed": run.seed, "noise": explicit},
        "dataset": {
            "task": task.name,
            "source": task.location[0],
            "fingerprint": prepared.data,
            "counts": counts,
        },
        "model": {
            "base_model": runs.base_model(run.model.path),
            "adaptation": run.adapt.name,
            "labels": list(loaded.labels),
            "parameters": sum(p.numel() for p in parameters),
            "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        },
        "mechanism": mechanism.to_dict() if mechanism.private else None,
        "privacy": {
            "unit": task.unit_in_words,
            "neighbouring": f"add or remove one {task.unit_noun}",
            "delta": mechanism.delta,
            "epsilon": epsilon,
            "steps_taken": mechanism.steps,
            "statement": _statement(mechanism, task, epsilon),
            "caveats": [
                *_caveats(mechanism, explicit, task, run.audit, epsilon),
                *ancestral_caveats(loaded.labels),
                *_refuted(measured, epsilon),
            ],
        }
        if mechanism.private
        else None,
        "training": {
            "steps": mechanism.steps,
            "seconds": seconds,
            "peak_memory_bytes": peak_memory(loaded.model.device),
            "device": str(loaded.model.device),
        },
        "labels": [
            *loaded.labels,
            *task.labels(),
            *_size_labels(run, task, len(prepared.records) - run.audit.planted),
            *run.audit.labels(),
        ],
        **measured,
    }


def _size_labels(run: Run, task: Task, count: int) -> list[str]:
    """That the training records are a part of a published set, where nothing else says so."""
    published = run.task.get("train_size")
    told = task.synthetic is not None or task.limit_train is not None
    if published is None or told or not task.published or task.location[0] == "sample":
        return []
    if not is_other_size(count, published):
        return []
    return [f"{count:,} training records, where the published set has {published:,}"]


# Below so many units no delta is both small beside 1/N and as small as one would want.
_FEW = 1000


def _statement(mechanism: Mechanism, task: Task, epsilon: dict[str, Any] | None) -> str:
    assert epsilon is not None
    if mechanism.steps == 0:
        return "no training step was taken: the weights depend on no record"
    counts = "the noisy counts behind the thresholds included, " if mechanism.quantiles else ""
    unit, bound = task.unit_noun, stated(epsilon)
    assert bound is not None
    return (
        f"({math.ceil(bound * 1000) / 1000:g}, {runs.delta(mechanism.delta)})-"
        f"differential privacy by {stated_by(epsilon)}, {counts}"
        f"for adding or removing one {unit}; one {unit} is {task.unit_in_words}"
    )


def _caveats(
    mechanism: Mechanism,
    noise_seed: int | None,
    task: Task,
    audit: Audit,
    epsilon: dict[str, Any] | None,
) -> list[str]:
    caveats: list[str] = []
    if mechanism.steps == 0:
        return caveats
    assert epsilon is not None
    unit, delta = task.unit_noun, runs.delta(mechanism.delta)
    # Canaries are nobody's: what delta says is said of the real units.
    size = mechanism.dataset_size - audit.slots - audit.planted
    caveats += weakness(stated(epsilon) or 0.0)
    if mechanism.delta >= 1 / size:
        caveats.append(
            f"delta is {delta} for {size:,} {unit}s: at 1/N and above, publishing a random {unit} "
            "would pass; the guarantee says next to nothing"
        )
    elif size < _FEW:
        caveats.append(f"only {size:,} {unit}s: delta is {delta}, large for a chance of failure")
    if task.limit_train is not None:
        caveats.append(
            f"trained on the first {task.limit_train} records of a file: one record more before "
            "them displaces another, so the guarantee is for these records as they were taken"
        )
    if mechanism.sampling == "shuffle":
        caveats.append("epsilon computed for Poisson sampling, run with shuffled batches")
    if noise_seed is not None and mechanism.noise_multiplier:
        caveats.append(
            f"noise and sampling follow from the explicit seed {noise_seed}: whoever knows it can "
            "remove the noise; for research, not for release"
        )
    if audit.secrets and audit.repetitions > 1:
        caveats.append(
            f"epsilon is for one {unit}, and each of the {audit.secrets} secrets is in the data "
            f"{audit.repetitions} times: it has the influence of {audit.repetitions} {unit}s, "
            "which epsilon does not cover"
        )
    if audit.slots:
        caveats.append(
            "the audit's figures (right guesses, epsilon spent at least) are computed from the "
            "noise itself, which is no part of the release, so that no epsilon covers them: leave "
            "them out wherever all that is published must be covered"
        )
    return caveats


def _refuted(measured: Mapping[str, Any], epsilon: dict[str, Any] | None) -> list[str]:
    audit = measured.get("audit")
    if audit is None or epsilon is None or not audit["refuted"]:
        return []
    return [
        f"THE AUDIT REFUTES IT: at {audit['confidence']:.0%} confidence the run spent an epsilon "
        f"of at least {down(audit['epsilon_lower'])}, more than {up(least_claim(epsilon))}. "
        "Something in the code does not do what is accounted for: do not release this model"
    ]


def least_claim(epsilon: Mapping[str, Any]) -> float:
    """The least epsilon that a card gives as an upper bound: what an audit may refute.

    Args:
        epsilon: by accountant, see `Mechanism.epsilons`.
    """
    return float(min(stated(epsilon) or 0.0, epsilon["prv"]["upper"]))


def forget_peak() -> None:
    """Begin a new peak, or each run of a process would report the largest of those before it."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
    memory.forget_peak()  # where that cannot be done the process's peak stays


def peak_memory(device: torch.device) -> int:
    """Peak bytes since `forget_peak`: of the GPU's allocator, or of the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = memory.resident("VmHWM")
    return memory.lifetime_peak() if peak is None else peak
