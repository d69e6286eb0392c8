"""Curves over steps: of what was released, and of what was not.

What is released stands in the ledger: epsilon, and thresholds that follow from noisy counts. The
learning rate follows from the settings. Losses, norms, clipped fractions and batch sizes come from
the training records without noise, out of ``private/metrics.jsonl``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpft.config.errors import DpftError
from dpft.privacy.accounting import epsilon_pld, spent
from dpft.privacy.guarantee import BY
from dpft.privacy.rounding import number
from dpft.report.evaluation import remarks
from dpft.report.pages.charts import Chart, Line, chart
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.values import finite, section

# Of so many groups each has a curve; of more, as many that are spread over all of them.
_MOST_GROUPS = 16
_MOST_RUNS = 12
# Points of the curve of epsilon by privacy loss distributions, each of which takes a fifth second.
_EPSILONS = 10


def released(run: Gathered, options: Options) -> dict[str, Any] | None:
    """Curves that may be published: epsilon, thresholds that adapt, the learning rate."""
    spent, rate = epsilon(run), learning_rate(run)
    by = run.guarantee.accountant if run.guarantee is not None else None
    note = f"by {BY[by or 'rdp']}"
    if run.mechanism.get("sampling") == "shuffle":
        note = "computed for Poisson sampling"
    constant = rate is not None and _constant(rate)
    curves = {
        "epsilon": spent
        and chart("Epsilon spent", [spent], zero=True, note=note, points=options.points),
        "thresholds": thresholds(run, options),
        "rates": chart("Learning rate", [rate], zero=True, points=options.points)
        if rate and not constant
        else None,
        "constant_rate": rate.points[0][1] if rate and constant else None,
    }
    return curves if any(value is not None for value in curves.values()) else None


def noiseless(run: Gathered, options: Options) -> list[Chart]:
    """Curves that no guarantee covers; none where the metrics were not read."""

    def by_batch(title: str, key: str, **style: Any) -> Chart | None:
        line = Line(key, _points(run, key))
        return chart(title, [line], points=options.points, **style)

    def by_group(title: str, key: str, **style: Any) -> Chart | None:
        lines, note = _some(_by_group(run, key))
        ordered = len(lines) > 1
        return chart(title, lines, ordered=ordered, note=note, points=options.points, **style)

    return _filled(
        by_batch("Mean loss of the batch", "loss", zero=True),
        by_group("Clipped fraction of the batch", "clipped", zero=True),
        by_group("Mean gradient norm of the batch", "norm_mean", log=True),
        by_batch("Records in the batch", "records", zero=True),
    )


def held_out(run: Gathered, options: Options) -> dict[str, Any] | None:
    """What held-out records said while the run trained; None if they were not asked of."""
    said = remarks(run.record or {})
    if not said and not run.evaluations:
        return None
    found = section(run.record or {}, "evaluation")
    kept = found.get("chosen")
    note = "" if kept is None else f"the weights of step {kept:,} were kept"

    def line(key: str) -> Line:
        return Line(key, tuple((e["step"], finite(e.get(key))) for e in run.evaluations))

    def of(title: str, *lines: Line, zero: bool = True) -> Chart | None:
        return chart(title, lines, zero=zero, note=note, points=options.points)

    accuracy, constant = line("accuracy"), found.get("baseline")
    lines = [accuracy]
    if constant is not None:
        lines.append(
            Line("most frequent class", tuple((step, constant) for step, _ in accuracy.points))
        )
    charts = _filled(
        of("Mean loss of held-out records", line("loss")),
        of("Accuracy on held-out records", *lines),
        of("Perplexity of held-out records", line("perplexity"), zero=False),
    )
    return {"said": said, "charts": charts}


def overlaid(runs: Sequence[Gathered], options: Options) -> list[Chart]:
    """The same curves of several runs in one chart each; of many runs, of the first."""
    drawn = runs[:_MOST_RUNS]
    note = "" if len(drawn) == len(runs) else f"the first {len(drawn)} of {len(runs)} runs"

    def together(title: str, make: Callable[[Gathered], Line | None], **style: Any) -> Chart | None:
        lines = [
            Line(run.name, line.points, place)
            for place, run in enumerate(drawn)
            if (line := make(run)) is not None and line.points
        ]
        return chart(title, lines, points=options.points, **{"note": note, **style})

    charts: list[Chart | None] = []
    if not all(_constant(rate) for rate in map(learning_rate, drawn) if rate):
        charts.append(together("Learning rate", learning_rate, zero=True))
    if options.private:
        over = "mean over groups" + (f"; {note}" if note else "")
        charts += [
            together(
                "Mean loss of the batch", lambda run: Line("", _points(run, "loss")), zero=True
            ),
            together(
                "Clipped fraction of the batch",
                lambda run: _mean_line(_by_group(run, "clipped")),
                zero=True,
                note=over,
            ),
        ]
    return _filled(*charts)


def epsilon(run: Gathered) -> Line | None:
    """Return what was spent, by the accountant of the headline: by PLD after some of the steps.

    By Renyi accounting after each release; None where the ledger leaves steps out, and of a
    selection, whose epsilon is not spent step by step.
    """
    given, mechanism = run.guarantee, run.mechanism
    if given is not None and given.accountant == "pld" and given.delta is not None:
        steps, cost = given.steps_taken, {**spent(mechanism), "delta": given.delta}
        some = sorted({round(steps * n / _EPSILONS) for n in range(1, _EPSILONS)} - {0, steps})
        before = [(n, epsilon_pld(steps=n, **cost)) for n in some]
        return Line("epsilon", ((0, 0.0), *before, (steps, given.stated)))
    if run.omitted or (given is not None and given.selected):
        return None
    points = [(n, finite(e.get("epsilon_rdp"))) for n, e in enumerate(run.entries, 1)]
    return Line("epsilon", ((0, 0.0), *points)) if points else None


def thresholds(run: Gathered, options: Options) -> dict[str, Any] | None:
    """The thresholds of each step, by group; None where they are fixed or left out.

    Args:
        run: whose ledger has them. They are noisy releases, and counted in epsilon.
        options: where private metrics may be shown, those serve if the ledger has none.
    """
    if run.omitted or not run.mechanism.get("quantiles"):
        return None
    lines = _lines(run, run.entries, "thresholds") or _by_group(run, "clip_thresholds")
    kept, note = _some(lines)
    drawn = chart(
        "Clipping thresholds" + (" by group" if len(lines) > 1 else ""),
        kept,
        log=True,
        ordered=len(kept) > 1,
        note="; ".join(filter(None, ["they follow from noisy counts, which epsilon covers", note])),
        points=options.points,
    )
    rows = [(line.name, *map(number, _summary(line))) for line in lines]
    return {"chart": drawn, "rows": rows if len(rows) > 1 else []}


def learning_rate(run: Gathered) -> Line | None:
    """The learning rate of each step, which follows from the settings; None if they do not say."""
    from dpft.config.schema import Optim, build, lr_factor

    training = (run.record or {}).get("training") or run.mechanism
    steps = int(training.get("steps") or 0)
    group = run.config.get("optim")
    if not steps or not isinstance(group, Mapping):
        return None
    try:
        settings = build(Optim, group, "optim")
    except (DpftError, TypeError):  # damaged
        return None
    rates = (settings.lr * lr_factor(settings, step, steps) for step in range(steps))
    return Line("learning rate", tuple(enumerate(rates, 1)))


def _points(run: Gathered, key: str) -> tuple[tuple[float, float | None], ...]:
    return tuple((line["step"] + 1, finite(line.get(key))) for line in run.metrics)


def _by_group(run: Gathered, key: str) -> list[Line]:
    return _lines(run, run.metrics, key)


def _lines(run: Gathered, entries: Sequence[Mapping[str, Any]], key: str) -> list[Line]:
    """One line for each group of the lists that entries have under ``key``."""
    # Of a step that was released twice the later release counts: the weights are made of it.
    listed = {e["step"] + 1: e[key] for e in entries if isinstance(e.get(key), list) and e[key]}
    found = sorted(listed.items())
    count = max((len(values) for _, values in found), default=0)
    names = _names(run, count)
    return [
        Line(
            names[k],
            tuple((step, finite(v[k]) if k < len(v) else None) for step, v in found),
        )
        for k in range(count)
    ]


def _names(run: Gathered, count: int) -> list[str]:
    names = run.header.get("groups")
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


def _constant(line: Line) -> bool:
    return len({value for _, value in line.points}) == 1


def _filled(*charts: Chart | None) -> list[Chart]:
    return [drawn for drawn in charts if drawn is not None]
