"""Comparisons of clipping styles by what ``dpft bench`` measured."""

from __future__ import annotations

from dpft.bench.catalog import BASELINE
from dpft.claims.bench_files import BenchFile
from dpft.claims.comparison import Comparison, Outcome, Side
from dpft.claims.contrast import in_words
from dpft.claims.evidence import Evidence
from dpft.claims.judging import spread_in_range
from dpft.claims.schema import BenchCheck, Expected

_NAMES = {
    "time": "time of a step",
    "memory": "peak memory",
    "batch": "largest batch",
    "speed": "records per second at the largest batch",
}


def compare_benches(check: BenchCheck, evidence: Evidence) -> list[Comparison]:
    """One comparison for each file and pair of styles that is there; else one without numbers."""
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


def _long_enough(file: BenchFile, check: BenchCheck) -> bool:
    least = check.longest_at_least
    return least is None or (file.length is not None and file.length >= least)


def _comparison(
    check: BenchCheck, expected: Expected, file: BenchFile, first: str, second: str
) -> Comparison | None:
    ratio = file.ratio(check.quantity, first, second)
    if ratio is None:
        return None
    return Comparison(
        side=Side.MEASURED,
        what=f"{_NAMES[check.quantity]}: {_name(first)} to {_name(second)}",
        expected=in_words(expected),
        outcome=spread_in_range(ratio.min, ratio.max, expected),
        found=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
        numbers={"ratio": ratio.median, "low": ratio.min, "high": ratio.max},
        where=", ".join(file.labels),
        brief=f"{file.model} on {file.device}",
        runs=(file.path.name,),
    )


def _name(style: str) -> str:
    return "non-private" if style == BASELINE else style
