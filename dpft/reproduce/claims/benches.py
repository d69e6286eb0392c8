"""Comparisons of clipping styles by what ``dpft bench`` measured."""

from __future__ import annotations

from collections.abc import Sequence

from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.claims.bench_files import BenchFile
from dpft.reproduce.claims.comparison import DECIDED, Comparison, Outcome, Side
from dpft.reproduce.claims.contrast import in_words
from dpft.reproduce.claims.evidence import Evidence
from dpft.reproduce.claims.judging import spread_in_range
from dpft.reproduce.claims.schema import BenchCheck, Expected

_NAMES = {
    "time": "time of a step",
    "memory": "peak memory",
    "batch": "largest batch",
    "speed": "records per second at the largest batch",
}
# The papers' memory is a GPU's. On a CPU the peak is of the whole process, and with few records
# most of it is the model.
_ON_A_GPU = ", decided on a GPU only"


def compare_benches(check: BenchCheck, evidence: Evidence) -> list[Comparison]:
    """One comparison for each file and pair of styles that is there; else one without numbers.

    Peaks of memory that were measured on a CPU are shown and decide nothing.
    """
    expected = Expected("ratio", check.low, check.high)
    pairs = [(a, b) for a in check.first for b in check.second if a != b]
    found = [
        _comparison(check, expected, file, *pair)
        for file in evidence.benches
        if file.model in check.models and _long_enough(file, check)
        for pair in pairs
    ]
    known = [one for one in found if one is not None]
    if known:
        return known
    what = f"{_NAMES[check.quantity]}: {' or '.join(f'{_name(a)} to {_name(b)}' for a, b in pairs)}"
    return [Comparison(Side.MEASURED, what, in_words(expected), Outcome.LACKING)]


def bench_commands(check: BenchCheck, found: Sequence[Comparison]) -> list[str]:
    """What would give the missing numbers, or those that would decide."""
    if any(one.outcome is Outcome.LACKING for one in found):
        return [check.command]
    if check.quantity == "memory" and not any(one.outcome in DECIDED for one in found):
        return [f"{check.command} --device cuda"]
    return []


def _long_enough(file: BenchFile, check: BenchCheck) -> bool:
    least = check.longest_at_least
    return least is None or (file.length is not None and file.length >= least)


def _comparison(
    check: BenchCheck, expected: Expected, file: BenchFile, first: str, second: str
) -> Comparison | None:
    ratio = file.ratio(check.quantity, first, second)
    if ratio is None:
        return None
    undecided = check.quantity == "memory" and file.device == "cpu"
    return Comparison(
        side=Side.MEASURED,
        what=f"{_NAMES[check.quantity]}: {_name(first)} to {_name(second)}",
        expected=f"{in_words(expected)}{_ON_A_GPU if undecided else ''}",
        outcome=Outcome.CLOSE if undecided else spread_in_range(ratio.min, ratio.max, expected),
        found=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
        numbers={"ratio": ratio.median, "low": ratio.min, "high": ratio.max},
        where=", ".join(file.labels),
        brief=f"{file.model} on {file.device}",
        runs=(file.path.name,),
    )


def _name(style: str) -> str:
    return "non-private" if style == BASELINE else style
