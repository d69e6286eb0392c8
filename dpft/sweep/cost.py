"""What choosing among the private runs of a sweep costs, in one paragraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpft.runs.shown import SHUFFLED, delta, up

# What decides how much a mechanism spends.
_SPENT = ("noise_multiplier", "sampling_rate", "steps")
_ADAPTIVE = (
    "Noise, batch size or steps of later runs were chosen by the scores of earlier ones: the total "
    "is then not proven, unless it had been fixed beforehand."
)
_WHERE = "dpft select chooses among private runs at a smaller price: docs/sweeps.md."


def remarks(records: Sequence[Mapping[str, Any]], searched: bool = False) -> list[str]:
    """A paragraph for each data set that several private runs were trained on.

    Args:
        records: of finished runs, see `dpft.runs.RunRecord`; those without privacy are passed over.
        searched: whether a sweeper chose settings by the scores of earlier runs.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        if record["mechanism"] is not None and record["training"]["steps"] > 0:
            data, unit = record["dataset"], record["privacy"]["unit"]
            key = (str(data["task"]), str(data["source"]), str(unit))
            groups.setdefault(key, []).append(record)
    return [_remark(key[0], group, searched) for key, group in groups.items() if len(group) > 1]


def composed(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Epsilon and delta of releasing what all the runs released.

    Guarantee: the mechanisms' Renyi divergences add up order by order (Mironov 2017, Proposition
    1), and the sum is converted at the least of the runs' deltas. It holds for runs on the same
    records, or on parts of them, also where a later run's other settings, such as its learning
    rate, were chosen by what an earlier one showed. Where its noise, sampling rate or steps were
    chosen so, a sum that is looked at afterwards is not proven, only one fixed beforehand (Feldman
    & Zrnic 2021); `remarks` says so.
    """
    from dpft.privacy import accounting

    mechanisms = [record["mechanism"] for record in records]
    curves = [
        accounting.run_curve(
            sampling_rate=mechanism["sampling_rate"],
            noise_multiplier=mechanism.get("total_noise_multiplier", mechanism["noise_multiplier"]),
            steps=mechanism["steps"],
        )
        for mechanism in mechanisms
    ]
    least = min(float(mechanism["delta"]) for mechanism in mechanisms)
    return accounting.composed(curves).epsilon(1, least), least


def _remark(task: str, records: Sequence[Mapping[str, Any]], searched: bool) -> str:
    epsilon, at = composed(records)
    each = max(float(record["privacy"]["epsilon"]["rdp"] or 0) for record in records)
    shuffled = any(record["mechanism"]["sampling"] == "shuffle" for record in records)
    text = (
        f"{len(records)} runs were trained with privacy on {task}. Each run's epsilon (at most "
        f"{up(each)}) holds if nothing but that run is released, and if it was not chosen by what "
        "the others showed. Releasing all of them, or the one that scored best, costs up to "
        f"epsilon {up(epsilon)} at delta {delta(at)} for each record (their composition, by RDP); "
        "runs elsewhere on the same records add to it. Scores computed on records of the same "
        f"people are further releases, which no run's ledger counts. {_WHERE}"
    )
    spent = {tuple(record["mechanism"][name] for name in _SPENT) for record in records}
    if searched and len(spent) > 1:
        text += f" {_ADAPTIVE}"
    return f"{text} {SHUFFLED}" if shuffled else text
