"""The page of several runs: sorted by score, laid over each other, and each in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpft.config.errors import DpftError
from dpft.privacy.guarantee import Guarantee
from dpft.privacy.rounding import up
from dpft.report.pages.curves import overlaid, thresholds
from dpft.report.pages.frame import Html, joined, listed, page, paragraph, table, text
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.guarantee import brief
from dpft.report.pages.one import STYLE, banners, problems, shown
from dpft.report.pages.sections import CHOSEN, COVERED, brief_cost, samples, summary
from dpft.report.pages.settings import changes, differing, told
from dpft.report.pages.settings import shown as value_shown
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
    parts: list[str] = [Html(f"<h1>{text(found.title)}</h1>"), *banners(ordered, options)]
    parts.append(problems(found.problems))
    parts += [Html("<h2>Runs</h2>"), shown(lambda: _overview(ordered, found))]
    remarks = shown(lambda: _together(ordered, found))
    if remarks:
        parts += [Html("<h2>What they cost together</h2>"), remarks]
    curves = shown(lambda: overlaid(ordered, options))
    if curves:
        parts += [Html("<h2>Curves</h2>"), curves]
    parts.append(Html("<h2>Each run</h2>"))
    parts.append(paragraph(f"Samples are of the split that was decoded, {CHOSEN} {COVERED}"))
    for place, run in enumerate(ordered):
        parts.append(_short(run, place, options))
    return page(f"{found.title} – dpft report", joined(parts), STYLE)


def by_score(runs: Sequence[Gathered], metric: str | None) -> list[Gathered]:
    """The best first; only runs of one task, split and metric are ranked against each other.

    Those without a score come last.

    Args:
        runs: in any order.
        metric: None: the first of each run's split.
    """
    scored = [(run, _kind(run, metric), _score(run, metric)[1]) for run in runs]
    kinds = list(dict.fromkeys(kind for _, kind, _ in scored if kind is not None))

    def rank(entry: tuple[Gathered, _Kind | None, float | None]) -> tuple[int, float]:
        _, kind, value = entry
        if kind is None or value is None:
            return len(kinds), 0.0
        return kinds.index(kind), value if lower_is_better(kind.metric) else -value

    return [run for run, _, _ in sorted(scored, key=rank)]


def _kind(run: Gathered, metric: str | None) -> _Kind | None:
    """What a run's score may be ranked among; None without a score."""
    name = _score(run, metric)[0]
    if name is None:
        return None
    groups = [run.config.get(group) or {} for group in ("task", "decode")]
    return _Kind(str(groups[0].get("name")), str(groups[1].get("split")), name)


def _score(run: Gathered, metric: str | None) -> tuple[str | None, float | None]:
    if run.record is None:
        return None, None
    try:
        return score(run.record, metric)
    except (DpftError, AttributeError, LookupError, TypeError):
        return None, None


def _overview(runs: Sequence[Gathered], found: Found) -> Html:
    different = differing([run.config for run in runs])
    apart = len(different) > _MOST_COLUMNS
    columns = {} if apart else different
    of_each = [_kind(run, found.metric) for run in runs]
    kinds = [kind for kind in dict.fromkeys(of_each) if kind is not None]
    first = [kind.metric for kind in kinds]
    metrics = list(dict.fromkeys([*first, *(m for run in runs for m in _metrics(run))]))
    metrics, more = metrics[:_MOST_METRICS], metrics[_MOST_METRICS:]
    head = ["run", "state", *columns, *metrics, "epsilon (RDP)", "steps", "time"]
    rows = [
        [
            Html(f"<a href='#r{place}'>{text(run.name)}</a>"),
            run.stage,
            *(column[place] for column in columns.values()),
            *(_figure(_metrics(run).get(metric)) for metric in metrics),
            *_spent(run),
        ]
        for place, run in enumerate(runs)
    ]
    parts = [_order(kinds), table(head, rows, labels=2 + len(columns))]
    if apart:
        listing = [(key, *values) for key, values in different.items()]
        parts.append(Html("<h3>What differs</h3>"))
        parts.append(table(("setting", *(run.name for run in runs)), listing, 1 + len(runs)))
    elif not different and len(runs) > 1:
        parts.append(paragraph("Their settings are the same, as far as they are known."))
    if more:
        parts.append(paragraph(f"Left out here, and shown with each run: {', '.join(more)}."))
    return joined(parts)


def _order(kinds: Sequence[_Kind]) -> Html:
    if not kinds:
        return paragraph("None is scored yet.")
    told_ones = [
        f"{_named(kind, kinds)}, {'lowest' if lower_is_better(kind.metric) else 'highest'} first"
        for kind in kinds
    ]
    apart = ""
    if len(kinds) > 1:
        apart = (
            " Runs of one task, split and metric stand together; scores of different ones cannot "
            "be compared."
        )
    return paragraph(f"Sorted by {'; then '.join(told_ones)}.{apart}")


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
        entries = run.ledger.entries if run.ledger is not None else []
        if not entries:
            return "–", "–", "–"
        total = (run.mechanism or {}).get("steps", "?")
        return up(entries[-1].get("epsilon_rdp")), f"{len(entries)} of {total}", "–"
    training, guarantee = run.record["training"], Guarantee.of_record(run.record)
    epsilon = up(guarantee.stated) if guarantee.private else "none"
    return epsilon, f"{training.get('steps', '–')}", clock(training.get("seconds"))


def _together(runs: Sequence[Gathered], found: Found) -> Html:
    """What releasing all of the runs, or the best one, costs."""
    records = [run.record for run in runs if run.record is not None and run.private]
    if len(records) < 2:
        return Html("")
    from dpft.report.cost import remarks

    return joined(paragraph(remark) for remark in remarks(records, found.searched))


def _short(run: Gathered, place: int, options: Options) -> Html:
    parts: list[str] = [Html(f"<h3 id='r{place}'>{text(run.name)}</h3>"), problems(run.problems)]
    parts += [shown(lambda: summary(run)), shown(lambda: paragraph(brief(run)))]
    parts.append(shown(lambda: _caveats(run)))
    if run.record is not None:
        record = run.record
        parts.append(shown(lambda: paragraph(f"{brief_cost(record)}.")))
    if run.config:
        parts.append(shown(lambda: _changed(run)))
    parts.append(shown(lambda: thresholds(run, options, listing=False)))
    if run.record is not None:
        parts.append(shown(lambda: samples(run, explained=False)))
        digest, code = run.record.get("config_hash"), run.record.get("dpft") or {}
        commit = f", commit {code['commit']}" if code.get("commit") else ""
        parts.append(
            paragraph(f"Configuration {digest}, dpft {code.get('version')}{commit}.", "quiet")
        )
    return joined(parts)


def _caveats(run: Gathered) -> Html:
    notes = run.guarantee.notes if run.guarantee else ()
    return listed(notes) if notes else Html("")


def _changed(run: Gathered) -> Html:
    changed = [f"{key}={value_shown(value)}" for key, value, _ in changes(run.config)]
    return paragraph(
        Html(f"Differs from what is shipped: <code>{text(told(' '.join(changed)))}</code>")
        if changed
        else "Nothing differs from what is shipped but the choices."
    )
