"""Comparisons of clipping styles by what ``dpft bench`` measured."""

from __future__ import annotations

from collections.abc import Sequence

from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.claims.comparison import Comparison, Outcome, Side, in_range, in_words
from dpft.reproduce.claims.schema import BenchCheck, Expected

_NAMES = {
    "time": "time of a step",
    "memory": "peak memory",
    "batch": "largest batch",
    "speed": "records per second at the largest batch",
}


def compare_benches(check: BenchCheck, benches: Sequence[BenchFile]) -> list[Comparison]:
    """One comparison for each file and pair of styles that is there; else one without numbers.

    The papers' memory is a GPU's. On a CPU the peak is of the whole process, and with few records
    most of it is the model: it is shown and decides nothing.
    """
    expected = in_words(Expected("ratio", *check.ratio))
    pairs = [(a, b) for a in check.first for b in check.second if a != b]
    compared: list[Comparison] = []
    for file in benches:
        if file.model not in check.models or (file.length or 0) < (check.tokens or 0):
            continue
        undecided = check.quantity == "memory" and file.device == "cpu"
        for first, second in pairs:
            if (ratio := file.ratio(check.quantity, first, second)) is None:
                continue
            outcome = in_range(ratio.min, ratio.max, check.ratio)
            compared.append(
                Comparison(
                    side=Side.MEASURED,
                    what=f"{_NAMES[check.quantity]}: {_name(first)} to {_name(second)}",
                    expected=f"{expected}, decided on a GPU only" if undecided else expected,
                    outcome=Outcome.CLOSE if undecided else outcome,
                    text=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
                    numbers={"ratio": ratio.median, "low": ratio.min, "high": ratio.max},
                    where=", ".join(file.labels),
                    brief=f"{file.model} on {file.device}",
                    runs=(file.path.name,),
                )
            )
    if compared:
        return compared
    names = " or ".join(f"{_name(first)} to {_name(second)}" for first, second in pairs)
    what = f"{_NAMES[check.quantity]}: {names}"
    return [Comparison(Side.MEASURED, what, expected, Outcome.LACKING)]


def bench_commands(check: BenchCheck, compared: Sequence[Comparison]) -> list[str]:
    """What would give the missing numbers, or those that would decide."""
    outcomes = {one.outcome for one in compared}
    if Outcome.LACKING in outcomes:
        return [check.command]
    if check.quantity == "memory" and outcomes == {Outcome.CLOSE}:
        return [f"{check.command} --device cuda"]
    return []


def _name(style: str) -> str:
    return "non-private" if style == BASELINE else style
