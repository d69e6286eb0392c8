"""The page of several runs: sorted by score, laid over each other, and each in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpft.config.errors import DpftError
from dpft.privacy.guarantee import Guarantee
from dpft.privacy.rounding import up
from dpft.report.html import render
from dpft.report.pages.curves import overlaid, thresholds
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.guarantee import brief
from dpft.report.pages.sections import (
    Section,
    brief_cost,
    brief_provenance,
    samples,
    section,
    summary,
)
from dpft.report.pages.settings import configuration, differing
from dpft.report.pages.target import Found
from dpft.report.terminal import clock
from dpft.tasks.scores import lower_is_better, score

# More settings than these are compared in a table of their own.
_MOST_COLUMNS = 8
_MOST_METRICS = 8


class _Kind(NamedTuple):
    """What a score is of: those of another kind are not comparable with it."""

    task: str
    split: str
    metric: str


def several_page(runs: Sequence[Gathered], found: Found, options: Options) -> str:
    """The whole file for several runs.

    Args:
        runs: in any order.
        found: what was asked for.
        options: what may be shown.
    """
    ordered = by_score(runs, found.metric)
    headed = [
        section("overview", lambda: overview(ordered, found.metric), "Runs"),
        section("together", lambda: together(ordered, found.searched), "What they cost together"),
        section("charts", lambda: overlaid(ordered, options), "Curves"),
    ]
    return render(
        "several.html",
        found=found,
        title=found.title,
        runs=ordered,
        without=[run for run in ordered if not run.private],
        brief=brief(ordered[0]),
        options=options,
        sections=[part for part in headed if part.filled],
        each=[(run, _short(run, options)) for run in ordered],
    )


def by_score(runs: Sequence[Gathered], metric: str | None) -> list[Gathered]:
    """The best first; only runs of one task, split and metric are ranked against each other.

    Those without a score come last.

    Args:
        runs: in any order.
        metric: None: the first of each run's split.
    """
    scored = [_scored(run, metric) for run in runs]
    kinds = list(dict.fromkeys(entry[0] for entry in scored if entry is not None))

    def rank(place: int) -> tuple[int, float]:
        entry = scored[place]
        if entry is None:
            return len(kinds), 0.0
        kind, value = entry
        return kinds.index(kind), value if lower_is_better(kind.metric) else -value

    return [runs[place] for place in sorted(range(len(runs)), key=rank)]


def _scored(run: Gathered, metric: str | None) -> tuple[_Kind, float] | None:
    """What a run's score is of, and the score; None without one."""
    if run.record is None:
        return None
    try:
        name, value = score(run.record, metric)
    except (DpftError, AttributeError, LookupError, TypeError):
        return None
    if value is None:
        return None
    task, decode = (run.config.get(group) or {} for group in ("task", "decode"))
    return _Kind(str(task.get("name")), str(decode.get("split")), name), value


def overview(runs: Sequence[Gathered], metric: str | None) -> dict[str, Any]:
    """The runs as a table of their differences and scores, with how it is sorted.

    Args:
        runs: in the table's order.
        metric: by which they are sorted; None: the first of each run's split.
    """
    different = differing([run.config for run in runs])
    apart = len(different) > _MOST_COLUMNS
    columns = {} if apart else different
    scored = (_scored(run, metric) for run in runs)
    kinds = list(dict.fromkeys(entry[0] for entry in scored if entry is not None))
    first = [kind.metric for kind in kinds]
    metrics = list(dict.fromkeys([*first, *(name for run in runs for name in _metrics(run))]))
    metrics, more = metrics[:_MOST_METRICS], metrics[_MOST_METRICS:]
    rows = [
        [
            run.name,
            run.stage,
            *(column[place] for column in columns.values()),
            *(_figure(_metrics(run).get(name)) for name in metrics),
            *_spent(run),
        ]
        for place, run in enumerate(runs)
    ]
    return {
        "sorted_by": [
            f"{_named(kind, kinds)}, "
            f"{'lowest' if lower_is_better(kind.metric) else 'highest'} first"
            for kind in kinds
        ],
        "head": ["run", "state", *columns, *metrics, "epsilon, at most", "steps", "time"],
        "rows": rows,
        "labels": 2 + len(columns),
        "names": [run.name for run in runs],
        "apart": [(key, *values) for key, values in different.items()] if apart else [],
        "same": not different and len(runs) > 1,
        "more": more,
    }


def _named(kind: _Kind, kinds: Sequence[_Kind]) -> str:
    """The metric, and of task and split those that not all runs share."""
    parts = [kind.metric]
    if len({one.split for one in kinds}) > 1:
        parts.append(f"of {kind.split}")
    if len({one.task for one in kinds}) > 1:
        parts.append(f"on {kind.task}")
    return " ".join(parts)


def _metrics(run: Gathered) -> Mapping[str, Any]:
    """The scores of the split that was decoded; empty where the record has none."""
    if run.record is None:
        return {}
    try:
        split = run.record["config"]["decode"]["split"]
        metrics = run.record["scores"][split]["metrics"]
    except (LookupError, TypeError):
        return {}
    return metrics if isinstance(metrics, Mapping) else {}


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float | int) else "–"


def _spent(run: Gathered) -> tuple[str, str, str]:
    """Epsilon, steps and time; of an unfinished run as far as its ledger goes."""
    if run.record is None:
        if not run.entries:
            return "–", "–", "–"
        total = run.mechanism.get("steps", "?")
        return up(run.entries[-1].get("epsilon_rdp")), f"{run.next_step} of {total}", "–"
    training, guarantee = run.record["training"], Guarantee.of_record(run.record)
    epsilon = up(guarantee.stated) if guarantee.private else "none"
    return epsilon, f"{training.get('steps', '–')}", clock(training.get("seconds"))


def together(runs: Sequence[Gathered], searched: bool) -> list[str]:
    """What releasing all of the runs, or the best one, costs."""
    from dpft.report.cost import remarks

    return remarks([r.record for r in runs if r.record is not None and r.private], searched)


def _short(run: Gathered, options: Options) -> list[Section]:
    sections = [
        section("summary", lambda: summary(run)),
        section("brief", lambda: brief(run)),
        section("notes", lambda: run.guarantee.notes if run.guarantee else ()),
        section("brief", lambda: brief_cost(run.record) if run.record else ""),
        section("brief_configuration", lambda: configuration(run)),
        section("thresholds", lambda: thresholds(run, options)),
    ]
    if run.record is not None:
        sections.append(section("samples", lambda: samples(run, explained=False)))
        sections.append(section("quiet", lambda: brief_provenance(run.record or {})))
    return [part for part in sections if part.filled]
