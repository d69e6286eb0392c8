"""State what releasing several private runs, or the best of them, costs together."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpft.config.published import PUBLISHED_TASKS
from dpft.privacy.guarantee import SHUFFLED, Guarantee
from dpft.privacy.rounding import delta, up
from dpft.runs.ledger import LedgerContents, key_fingerprint, key_from_seed

if TYPE_CHECKING:
    from dpft.privacy.accounting import RDPCurve

# Published tasks of which one holds records of the other.
_OVERLAPPING = {"e2e", "dart"}
_OWN = ""


def remarks(
    records: Sequence[Mapping[str, Any]],
    unfinished: Mapping[str, LedgerContents | None] | None = None,
) -> list[str]:
    """Return a paragraph for each data set that several private runs were trained on.

    Runs of a published task count as runs on the same records, whichever files they read, and so
    do all runs on files of one's own, whatever is made of them: a total over too many is safe.
    Nothing is added up between these groups; where their data may overlap, a paragraph says so.
    Records and users are different units, so that their epsilons are never added up.

    Args:
        records: of finished runs; those without privacy are ignored.
        unfinished: ledgers by name of private runs that took steps and have no record; None: one
            that is damaged.
    """
    unfinished = unfinished or {}
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        guarantee = Guarantee.of_record(record)
        if guarantee.kind == "private":
            task = str(record["dataset"]["task"])
            key = (task if task in PUBLISHED_TASKS else _OWN, guarantee.noun)
            groups.setdefault(key, []).append(record)
    counts = Counter(_key(record) for each in groups.values() for record in each)
    counts.update(_key_in(ledger) for ledger in unfinished.values())
    shared = {key for key, times in counts.items() if key is not None and times > 1}
    found = [_total(noun, each, shared) for (_, noun), each in groups.items() if each[1:]]
    named: dict[str, dict[str, None]] = {}
    for (group, _), each in groups.items():
        tasks = dict.fromkeys(record["dataset"]["task"] for record in each)
        named.setdefault(group, {}).update(tasks)
    if len(named) > 1 and (_OWN in named or named.keys() >= _OVERLAPPING):
        found.append(_paragraph("apart", groups=[" and ".join(each) for each in named.values()]))
    return [*found, *([_unfinished(unfinished, shared)] if unfinished else [])]


def planned(ledger: LedgerContents) -> float | None:
    """Return epsilon, by RDP, of all steps that a run was to take and of those that it repeats.

    Guarantee: it holds for a run that ended earlier, for any reason. The epsilon of the steps taken
    does not hold where their number depends on the records: where a user stopped the run because of
    its releases, or where it diverged.

    Returns:
        Never less than what the ledger has spent; None where header or last line do not say.
    """
    mechanism = ledger.header.get("mechanism", {})
    try:
        repeated = max(ledger.stretch.repeated, ledger.steps_spent - mechanism["steps"])
        curve = _curve({"mechanism": {**mechanism, "repeated": repeated}})
        epsilon = curve.epsilon(1, float(mechanism["delta"]))
        return None if ledger.epsilon is None else max(ledger.epsilon, epsilon)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def composed(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return epsilon and delta of releasing what all the runs released.

    Guarantee: the mechanisms' Renyi divergences add up order by order (Mironov 2017, Proposition
    1), and the sum is converted at the least of the runs' deltas. A run of `dpft sweep --select`
    adds the divergence of its whole selection. The sum holds for runs on the same records, or on
    parts of them, whose noise is independent, also where a later run's other settings, such as its
    learning rate, were chosen by what an earlier one showed. Where its noise, sampling rate or
    steps were chosen so, a sum that is looked at afterwards is not proven, only one fixed
    beforehand (Feldman & Zrnic 2021).
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


def _curve(record: Mapping[str, Any]) -> "RDPCurve":
    """Return the Renyi DP of what was released of a run, the choice of it included."""
    import numpy as np

    from dpft.privacy import accounting

    selection = record.get("selection")
    if selection is None:
        mechanism = record["mechanism"]
        steps = mechanism["steps"] + mechanism.get("repeated", 0)
        return accounting.run_curve(**accounting.spent(mechanism), steps=steps)
    rdp = [math.inf if value is None else value for value in selection["rdp"]]
    return accounting.RDPCurve(np.array(selection["orders"]), np.array(rdp))


def _paragraph(kind: str, **data: Any) -> str:
    from dpft.report.text_table import environment

    template = environment(autoescape=False).get_template("together.txt")
    return " ".join(template.render(kind=kind, **data).split())


def _total(unit: str, records: Sequence[Mapping[str, Any]], shared: set[str]) -> str:
    explicit = [key for key in map(_key, records) if key is not None]
    voided = [record["privacy"]["voided_by"] for record in records]
    refuted = sum("refuted" in one for one in voided)
    cancels = shared.intersection(explicit)
    # Where no total holds, none is computed.
    epsilon, at = (0.0, 0.0) if refuted or cancels else composed(records)
    return _paragraph(
        "total",
        count=len(records),
        tasks=list(dict.fromkeys(record["dataset"]["task"] for record in records)),
        refuted=refuted,
        shared=cancels,
        each=up(max(float(record["privacy"]["stated"] or 0) for record in records)),
        epsilon=up(epsilon),
        delta=delta(at),
        unit=unit,
        chosen=sum("selection" in record for record in records),
        explicit=len(explicit),
        shuffled=SHUFFLED if any("shuffled" in one for one in voided) else "",
    )


def _unfinished(unfinished: Mapping[str, LedgerContents | None], shared: set[str]) -> str:
    """Return a paragraph on runs without a record, which no total counts."""
    costs = []
    for name, ledger in unfinished.items():
        epsilon = None if ledger is None else planned(ledger)
        costs.append(f"{name}: epsilon {up(epsilon)}")
        if ledger and epsilon is not None:
            at = delta(ledger.header["mechanism"]["delta"])
            costs[-1] += f" at delta {at} ({up(ledger.epsilon)} so far)"
    headers = [ledger.header for ledger in unfinished.values() if ledger]
    shuffled = any(one.get("mechanism", {}).get("sampling") == "shuffle" for one in headers)
    return _paragraph(
        "unfinished",
        costs=costs,
        shared=shared.intersection(map(_key_in, unfinished.values())),
        shuffled=SHUFFLED if shuffled else "",
    )


def _key(record: Mapping[str, Any]) -> str | None:
    seed = record.get("seeds", {}).get("noise")
    return None if seed is None else key_fingerprint(key_from_seed(seed))


def _key_in(ledger: LedgerContents | None) -> str | None:
    key = None if ledger is None else ledger.header.get("key")
    return None if key is None else str(key)
