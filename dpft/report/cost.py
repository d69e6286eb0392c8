"""What choosing among the private runs of a sweep costs, in one paragraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpft.config.published import PUBLISHED_TASKS
from dpft.privacy.guarantee import SHUFFLED, Guarantee
from dpft.privacy.rounding import delta, up

if TYPE_CHECKING:
    from dpft.privacy.accounting import RDPCurve

# What decides how much a mechanism spends.
_SPENT = ("noise_multiplier", "sampling_rate", "steps")
_ADAPTIVE = (
    "Noise, batch size or steps of later runs were chosen by the scores of earlier ones: the total "
    "is then not proven, unless it had been fixed beforehand."
)
_WHERE = "dpft select chooses among private runs at a smaller price: docs/how-to/sweeps.md."


def remarks(records: Sequence[Mapping[str, Any]], searched: bool = False) -> list[str]:
    """A paragraph for each data set that several private runs were trained on.

    Runs of a published task count as runs on the same records, whichever files they read, and so
    do all runs on files of one's own, whatever is made of them: a total over too many is safe.
    Records and users are told apart, since epsilons of different units do not add up.

    Args:
        records: of finished runs, see `dpft.runs.RunRecord`; those without privacy are passed over.
        searched: whether a sweeper chose settings by the scores of earlier runs.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        guarantee = Guarantee.of_record(record)
        if guarantee.kind == "private":
            task = str(record["dataset"]["task"])
            key = (task if task in PUBLISHED_TASKS else "", guarantee.noun)
            groups.setdefault(key, []).append(record)
    return [_remark(noun, each, searched) for (_, noun), each in groups.items() if len(each) > 1]


def unfinished(spent: Mapping[str, float | None]) -> list[str]:
    """A paragraph on runs without a record, of which `remarks` knows nothing; none without runs.

    Args:
        spent: epsilon that each has spent by RDP, by what tells the runs apart.
    """
    if not spent:
        return []
    each = "; ".join(f"{name}: epsilon {up(epsilon)}" for name, epsilon in spent.items())
    return [
        "Runs that are not finished (stopped, failed or diverged) count in no total. What the "
        "steps in their ledgers have spent, by RDP, adds to what is released of runs on the same "
        f"records: {each}"
    ]


def composed(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Epsilon and delta of releasing what all the runs released.

    Guarantee: the mechanisms' Renyi divergences add up order by order (Mironov 2017, Proposition
    1), and the sum is converted at the least of the runs' deltas. A run that `dpft select` chose
    adds the divergence of its whole selection. The sum holds for runs on the same records, or on
    parts of them, whose noise is independent, also where a later run's other settings, such as its
    learning rate, were chosen by what an earlier one showed. Where its noise, sampling rate or
    steps were chosen so, a sum that is looked at afterwards is not proven, only one fixed
    beforehand (Feldman & Zrnic 2021); `remarks` says so.
    """
    from dpft.privacy import accounting

    least = min(
        float(record[part]["delta"])
        for record in records
        for part in ("mechanism", "privacy")
        if "delta" in record[part]
    )
    total = accounting.composed([_curve(record) for record in records])
    return total.epsilon(1, least), least


def _curve(record: Mapping[str, Any]) -> RDPCurve:
    """Renyi DP of what was released of a run, the choice of it included."""
    from dpft.privacy import accounting

    selection = record.get("selection")
    if selection is None:
        mechanism = record["mechanism"]
        return accounting.run_curve(
            sampling_rate=mechanism["sampling_rate"],
            noise_multiplier=mechanism.get("total_noise_multiplier", mechanism["noise_multiplier"]),
            steps=mechanism["steps"] + mechanism.get("repeated", 0),
            overflow=mechanism.get("overflow", 0.0),
        )
    trials = accounting.Trials(float(selection["mean"]), float(selection["shape"]))
    return trials.cost(
        accounting.at_most([accounting.run_curve(**spent) for spent in selection["mechanisms"]])
    )


def _remark(unit: str, records: Sequence[Mapping[str, Any]], searched: bool) -> str:
    tasks = dict.fromkeys(str(record["dataset"]["task"]) for record in records)
    trained = f"{len(records)} runs were trained with privacy on {' and '.join(tasks)}."
    if len(tasks) > 1:
        trained += " They count as runs on the same records."
    seeds = [record.get("seeds", {}).get("noise") for record in records]
    explicit = [seed for seed in seeds if seed is not None]
    if len(set(explicit)) < len(explicit):
        return (
            f"{trained} Several of them drew their noise from the same explicit seed: subtracting "
            "one release from another may remove it, so no total holds and none is stated. Leave "
            f"privacy.noise_seed out. {_WHERE}"
        )
    epsilon, at = composed(records)
    each = max(float(record["privacy"]["stated"] or 0) for record in records)
    text = (
        f"{trained} Each run's epsilon (at most "
        f"{up(each)}) holds if nothing but that run is released, and if it was not chosen by what "
        "the others showed. Releasing all of them, or the one that scored best, costs up to "
        f"epsilon {up(epsilon)} at delta {delta(at)} for each {unit} (their composition, by RDP); "
        f"runs elsewhere on the same {unit}s add to it. Scores computed on records of the same "
        f"people are further releases, which no run's ledger counts. {_WHERE}"
    )
    chosen = sum("selection" in record for record in records)
    if chosen:
        text += f" Of {chosen} that dpft select chose, the whole selection is counted."
    if explicit:
        text += (
            f" The noise of {len(explicit)} follows from explicit seeds: the total holds only "
            "against those who do not know them."
        )
    spent = {tuple(record["mechanism"][name] for name in _SPENT) for record in records}
    if searched and len(spent) > 1:
        text += f" {_ADAPTIVE}"
    return f"{text} {SHUFFLED}" if any(map(_shuffled, records)) else text


def _shuffled(record: Mapping[str, Any]) -> bool:
    return "shuffled" in record["privacy"]["voided_by"]
