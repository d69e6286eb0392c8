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


def compare_benches(
    check: BenchCheck, benches: Sequence[BenchFile]
) -> tuple[list[Comparison], list[str]]:
    """One comparison for each file and pair of styles that is there; else one without numbers.

    The papers' memory is a GPU's. On a CPU the peak is of the whole process, and with few records
    most of it is the model: it is shown and decides nothing.

    Returns:
        The comparisons, and the command that would give the missing numbers, or those that decide.
    """
    expected, quantity = in_words(Expected("ratio", *check.ratio)), _NAMES[check.quantity]
    pairs = {
        (a, b): f"{_name(a)} to {_name(b)}" for a in check.first for b in check.second if a != b
    }
    compared: list[Comparison] = []
    for file in benches:
        if file.model not in check.models or (file.length or 0) < (check.tokens or 0):
            continue
        undecided = check.quantity == "memory" and file.device == "cpu"
        for (first, second), name in pairs.items():
            if (ratio := file.ratio(check.quantity, first, second)) is None:
                continue
            outcome = in_range(ratio.min, ratio.max, check.ratio)
            compared.append(
                Comparison(
                    side=Side.MEASURED,
                    what=f"{quantity}: {name}",
                    expected=f"{expected}, decided on a GPU only" if undecided else expected,
                    outcome=Outcome.CLOSE if undecided else outcome,
                    text=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
                    numbers={"ratio": ratio.median, "low": ratio.min, "high": ratio.max},
                    where=", ".join(file.labels),
                    brief=f"{file.model} on {file.device}",
                    runs=(file.path.name,),
                )
            )
    if not compared:
        what = f"{quantity}: {' or '.join(pairs.values())}"
        return [Comparison(Side.MEASURED, what, expected, Outcome.LACKING)], [check.command]
    on_gpu = check.quantity == "memory" and all(one.outcome is Outcome.CLOSE for one in compared)
    return compared, [f"{check.command} --device cuda"] if on_gpu else []


def _name(style: str) -> str:
    return "non-private" if style == BASELINE else style
