"""Curves over steps: of what was released, and of what was not.

What is released stands in the ledger: epsilon, and thresholds that follow from noisy counts. The
learning rate follows from the settings. Losses, norms, clipped fractions and batch sizes come from
the training records without noise, out of ``private/metrics.jsonl``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.config.errors import DpftError
from dpft.privacy.rounding import number
from dpft.report.pages.frame import Html, folded, joined, paragraph, table
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.svg import MOST_LINES, Line, chart

# Of so many groups each has a curve; of more, as many that are spread over all of them.
_MOST_GROUPS = 16
_MOST_RUNS = 12


def released(run: Gathered, options: Options) -> Html:
    """Curves that may be published: epsilon, thresholds that adapt, the learning rate."""
    parts = []
    if (spent := epsilon(run)) is not None:
        note = "computed for Poisson sampling" if _shuffled(run) else "by Renyi accounting"
        parts.append(chart("Epsilon spent", [spent], zero=True, note=note, points=options.points))
    parts.append(thresholds(run, options))
    parts.append(_rates([run], options))
    return joined(parts)


def noiseless(run: Gathered, options: Options) -> Html:
    """Curves that no guarantee covers; nothing where the metrics were not read."""
    points = options.points
    loss = [Line("loss", _points(run, "loss"))]
    drawn = [chart("Mean loss of the batch", loss, points=points)]
    for key, title, log in (
        ("clipped", "Clipped fraction of the batch", False),
        ("norm_mean", "Mean gradient norm of the batch", True),
    ):
        lines, note = _some(_by_group(run, key))
        drawn.append(
            chart(
                title,
                lines,
                log=log,
                zero=not log,
                ordered=len(lines) > 1,
                note=note,
                points=points,
            )
        )
    records = [Line("records", _points(run, "records"))]
    drawn.append(chart("Records in the batch", records, zero=True, points=points))
    return joined(drawn)


def overlaid(runs: Sequence[Gathered], options: Options) -> Html:
    """The same curves of several runs in one chart each; of many runs, of the first."""
    shown = list(runs[:_MOST_RUNS])
    note = "" if len(shown) == len(runs) else f"the first {len(shown)} of {len(runs)} runs"
    points = options.points
    spent = [_named(run, epsilon(run), place) for place, run in enumerate(shown)]
    parts = [chart("Epsilon spent", _present(spent), zero=True, note=note, points=points)]
    parts.append(_rates(shown, options, note))
    if options.private:
        loss = [_named(r, Line("", _points(r, "loss")), place) for place, r in enumerate(shown)]
        parts.append(chart("Mean loss of the batch", _present(loss), note=note, points=points))
        clipped = [
            _named(run, _mean_line(_by_group(run, "clipped")), place)
            for place, run in enumerate(shown)
        ]
        over = "mean over groups" + (f"; {note}" if note else "")
        parts.append(
            chart(
                "Clipped fraction of the batch",
                _present(clipped),
                zero=True,
                note=over,
                points=points,
            )
        )
    return joined(parts)


def epsilon(run: Gathered) -> Line | None:
    """Epsilon by Renyi accounting after each step, as the ledger has it."""
    entries = run.ledger.entries if run.ledger is not None else []
    points = [(e["step"] + 1, _finite(e.get("epsilon_rdp"))) for e in entries]
    return Line("epsilon", ((0, 0.0), *points)) if points else None


def thresholds(run: Gathered, options: Options, listing: bool = True) -> Html:
    """The thresholds of each step, by group; nothing where they are fixed.

    Args:
        run: whose ledger has them. They are noisy releases, and counted in epsilon.
        options: where private metrics may be shown, those serve if the ledger has none.
        listing: whether a table of all groups follows.
    """
    mechanism = run.mechanism or {}
    if not mechanism.get("quantiles"):
        return Html("")
    entries = run.ledger.entries if run.ledger is not None else []
    lines = _lines(run, entries, "thresholds") or _by_group(run, "clip_thresholds")
    if not lines:
        return paragraph(
            "The thresholds of each step are not in this run's ledger: it was trained elsewhere "
            "than on a CPU. They are noisy releases all the same; --private shows them, out of "
            "the private metrics."
        )
    kept, note = _some(lines)
    drawn = chart(
        "Clipping thresholds" + (" by group" if len(lines) > 1 else ""),
        kept,
        log=True,
        ordered=len(kept) > 1,
        note="; ".join(filter(None, ["they follow from noisy counts, which epsilon covers", note])),
        points=options.points,
    )
    if not listing or len(lines) == 1:
        return drawn
    rows = [(line.name, *map(number, _summary(line))) for line in lines]
    head = ("group", "first step", "last step", "least", "largest")
    return joined([drawn, folded(f"Thresholds of all {len(lines)} groups", table(head, rows))])


def learning_rate(run: Gathered) -> Line | None:
    """The learning rate of each step, which follows from the settings; None if they do not say."""
    from dpft.config.checks import build
    from dpft.config.schema import Optim

    steps = _planned_steps(run)
    group = run.config.get("optim")
    if not steps or not isinstance(group, Mapping):
        return None
    try:
        settings = build(Optim, group, "optim")
    except (DpftError, TypeError):  # damaged
        return None
    if settings.schedule == "constant" and not settings.warmup_steps and not settings.warmup_ratio:
        return Line("learning rate", tuple((step, settings.lr) for step in (1, steps)))
    from dpft.config.schedule import lr_factor

    return Line(
        "learning rate",
        tuple((step + 1, settings.lr * lr_factor(settings, step, steps)) for step in range(steps)),
    )


def _rates(runs: Sequence[Gathered], options: Options, note: str = "") -> Html:
    """A chart where a rate changes; for one run with a constant rate, a sentence."""
    lines = _present([_named(run, learning_rate(run), k) for k, run in enumerate(runs)])
    values = {value for line in lines for _, value in line.points}
    if len(runs) == 1 and len(values) == 1:
        return paragraph(f"The learning rate is {values.pop():g} at every step.")
    if all(len(line.points) == 2 for line in lines):
        return Html("")
    return chart("Learning rate", lines, zero=True, note=note, points=options.points)


def _planned_steps(run: Gathered) -> int:
    training = (run.record or {}).get("training") or {}
    header = (run.ledger.header.get("mechanism") if run.ledger is not None else None) or {}
    return int(training.get("steps") or header.get("steps") or 0)


def _shuffled(run: Gathered) -> bool:
    return (run.mechanism or {}).get("sampling") == "shuffle"


def _points(run: Gathered, key: str) -> tuple[tuple[float, float | None], ...]:
    return tuple((line["step"] + 1, _finite(line.get(key))) for line in run.metrics)


def _by_group(run: Gathered, key: str) -> list[Line]:
    return _lines(run, run.metrics, key)


def _lines(run: Gathered, entries: Sequence[Mapping[str, Any]], key: str) -> list[Line]:
    """One line for each group of the lists that entries have under ``key``."""
    found = [(e["step"] + 1, e[key]) for e in entries if isinstance(e.get(key), list) and e[key]]
    count = max((len(values) for _, values in found), default=0)
    names = _names(run, count)
    return [
        Line(
            names[k],
            tuple((step, _finite(v[k]) if k < len(v) else None) for step, v in found),
        )
        for k in range(count)
    ]


def _names(run: Gathered, count: int) -> list[str]:
    header = run.ledger.header if run.ledger is not None else {}
    names = header.get("groups")
    if isinstance(names, list) and len(names) == count:
        return list(map(str, names))
    return ["all"] if count == 1 else [f"group {k + 1}" for k in range(count)]


def _some(lines: Sequence[Line]) -> tuple[list[Line], str]:
    """At most `_MOST_GROUPS` of the lines, the first and the last among them."""
    if len(lines) <= _MOST_GROUPS:
        return list(lines), ""
    last = len(lines) - 1
    places = sorted({round(k * last / (_MOST_GROUPS - 1)) for k in range(_MOST_GROUPS)})
    return [lines[place] for place in places], f"{len(places)} of {len(lines)} groups"


def _summary(line: Line) -> tuple[float | None, ...]:
    values = [value for _, value in line.points]
    known = [value for value in values if value is not None]
    return values[0], values[-1], min(known, default=None), max(known, default=None)


def _mean_line(lines: Sequence[Line]) -> Line:
    columns = zip(*(line.points for line in lines), strict=True)
    return Line("", tuple((points[0][0], _mean([v for _, v in points])) for points in columns))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _named(run: Gathered, line: Line | None, place: int) -> Line | None:
    return None if line is None else Line(run.name, line.points, place)


def _present(lines: Sequence[Line | None]) -> list[Line]:
    return [line for line in lines if line is not None and line.points][:MOST_LINES]


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, float | int) or not math.isfinite(value):
        return None
    return float(value)
