"""The page of several runs: sorted by score, laid over each other, and each in short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpft.privacy.guarantee import Guarantee, marked, warnings
from dpft.privacy.rounding import up
from dpft.report.html import render
from dpft.report.pages.curves import overlaid, thresholds
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.guarantee import brief
from dpft.report.pages.ranking import Kind, Repeated, kinds_of, metrics, ranked, swept
from dpft.report.pages.result import means, of_several
from dpft.report.pages.sections import (
    Section,
    brief_cost,
    brief_provenance,
    brief_scores,
    samples,
    section,
    summary,
)
from dpft.report.pages.settings import configuration, differing, telling, without_folders
from dpft.report.pages.target import Found
from dpft.report.pages.tradeoff import tradeoffs
from dpft.report.terminal import clock

_MOST_METRICS = 5
# Settings before the scores; further ones stand behind what everybody looks for.
_MOST_BEFORE = 3
_MOST_SAMPLED = 12


def several_page(runs: Sequence[Gathered], found: Found, options: Options) -> str:
    """The whole file for several runs.

    Args:
        runs: in any order.
        found: what was asked for.
        options: what may be shown.
    """
    groups = ranked(runs, found.metric)
    ordered = [run for group in groups for run in group.runs]
    headed = [
        section("charts", lambda: tradeoffs(groups), "Score against epsilon"),
        section("overview", lambda: overview(groups), "Runs"),
        section("means", lambda: means(groups), "What the epsilon means"),
        section("together", lambda: together(ordered, found.searched), "What they cost together"),
        section("samples", lambda: samples(ordered[:_MOST_SAMPLED]), "Samples"),
        section("charts", lambda: overlaid(ordered, options), "Curves"),
    ]
    return render(
        "several.html",
        found=found,
        title=found.title,
        runs=ordered,
        result=section("result", lambda: of_several(groups)),
        without=[run for run in ordered if run.begun and not run.private],
        brief=brief(ordered[0]),
        options=options,
        sections=[part for part in headed if part.filled],
        each=[(run, _short(run, options)) for run in ordered],
    )


def overview(groups: Sequence[Repeated]) -> dict[str, Any]:
    """Settings as a table of what tells them apart and of their scores, with how it is sorted.

    Args:
        groups: in the table's order.
    """
    runs = [run for group in groups for run in group.runs]
    firsts = [group.runs[0] for group in groups]
    columns = _columns(groups)
    before = dict(list(columns.items())[:_MOST_BEFORE])
    after = {key: column for key, column in columns.items() if key not in before}
    kinds = kinds_of(groups)
    first = [kind.metric for kind in kinds]
    names = list(dict.fromkeys([*first, *(name for run in runs for name in metrics(run))]))
    names, more = names[:_MOST_METRICS], names[_MOST_METRICS:]
    constants = [group.baseline(group.kind.metric) if group.kind else None for group in groups]
    with_constants, averaged = any(constants), len(groups) < len(runs)
    places = iter(range(len(runs)))
    rows = [
        {
            "links": [(name, next(places)) for name in _links(group)],
            "many": "seeds" if _seeds(group) else "runs",
            "labels": [column[place] for column in before.values()],
            "numbers": [
                *(_mean(group, name) for name in names),
                *(
                    ["–" if (value := constants[place]) is None else f"{value:.4f}"]
                    if with_constants
                    else []
                ),
                *([f"{group.score.n if group.score else 0}"] if averaged else []),
                *_spent(group),
            ],
            "words": [_state(group), *(column[place] for column in after.values())],
        }
        for place, group in enumerate(groups)
    ]
    different = differing([run.config for run in firsts])
    apart = different.keys() - columns.keys() - {"seed"}
    return {
        "sorted_by": [
            f"{_named(kind, kinds)}, {'lowest' if kind.lower_is_better else 'highest'} first"
            for kind in kinds
        ],
        "averaged": averaged,
        "labels": ["run", *before],
        "numbers": [
            *names,
            *(["most frequent class"] if with_constants else []),
            *(["n"] if averaged else []),
            *("epsilon, at most", "steps", "time"),
        ],
        "words": ["state", *after],
        "rows": rows,
        "names": [group.runs[0].name for group in groups],
        "apart": [(key, *values) for key, values in different.items() if key in apart],
        "same": not different and len(runs) > 1,
        "more": more,
    }


def _mean(group: Repeated, name: str) -> str:
    """The mean of a score, and of how many runs where these are not the row's n: some diverge."""
    mean = group.mean(name)
    if mean is None:
        return "–"
    scored = group.score.n if group.score is not None else len(group.runs)
    return f"{mean} (n = {mean.n})" if mean.n != scored else str(mean)


def _columns(groups: Sequence[Repeated]) -> dict[str, list[str]]:
    """The settings that a sweep varies, as they were typed; of other runs, few that tell them."""
    firsts = [group.runs[0] for group in groups]
    if all(run.label is not None for run in firsts):
        typed = [swept(run) for run in firsts]
        keys = dict.fromkeys(key for settings in typed for key in settings)
        keys.pop("seed", None)
        return {
            key: [without_folders(settings.get(key, "–")) for settings in typed] for key in keys
        }
    told = [up(group.epsilon) if group.private else "none" for group in groups]
    return telling([run.config for run in firsts], told)


def _links(group: Repeated) -> list[str]:
    """What leads to each run: its name, or its seed among those of its settings."""
    return _seeds(group) or [run.name for run in group.runs]


def _seeds(group: Repeated) -> list[str]:
    """Of several runs, if their seeds tell them apart."""
    seeds = [str(run.config.get("seed", swept(run).get("seed"))) for run in group.runs]
    distinct = len(set(seeds)) == len(seeds) > 1 and "None" not in seeds
    return seeds if distinct else []


def _state(group: Repeated) -> str:
    stages = list(dict.fromkeys(run.stage for run in group.runs))
    if len(stages) == 1:
        return stages[0]
    return "; ".join(f"{sum(r.stage == stage for r in group.runs)} {stage}" for stage in stages)


def _named(kind: Kind, kinds: Sequence[Kind]) -> str:
    """The metric, and of task and split those that not all runs share."""
    parts = [kind.metric]
    if len({one.split for one in kinds}) > 1:
        parts.append(f"of {kind.split}")
    if len({one.task for one in kinds}) > 1:
        parts.append(f"on {kind.task}")
    return " ".join(parts)


def _spent(group: Repeated) -> tuple[str, str, str]:
    """Epsilon, steps and mean time of a row; of unfinished runs the epsilon of all steps."""
    each = [_spent_by(run) for run in group.runs]
    times = [seconds for *_, seconds in each if seconds is not None]
    epsilons, steps = (list(dict.fromkeys(run[part] for run in each)) for part in range(2))
    mean = clock(sum(times) / len(times)) if times else "–"
    return _listed(epsilons), _listed(steps), mean


def _listed(texts: Sequence[str | float | None]) -> str:
    """Without the dashes of runs that have no figure, if others have."""
    return " / ".join(str(text) for text in texts if text != "–") or "–"


def _spent_by(run: Gathered) -> tuple[str, str, float | None]:
    from dpft.report.cost import planned

    if run.record is None:
        if run.ledger is None or not run.entries:
            return "–", "–", None
        total = run.mechanism.get("steps", "?")
        void = warnings(run.mechanism.get("sampling"), None)
        return marked(planned(run.ledger), void), f"{run.next_step} of {total}", None
    training, guarantee = run.record["training"], Guarantee.of_record(run.record)
    epsilon = marked(guarantee.stated, guarantee.voided_by) if guarantee.private else "none"
    return epsilon, f"{training.get('steps', '–')}", training.get("seconds")


def together(runs: Sequence[Gathered], searched: bool) -> list[str]:
    """What releasing all of the runs, or the best one, costs; and what unfinished ones add."""
    from dpft.report.cost import remarks

    private = [run for run in runs if run.private]
    begun = {run.name: run.ledger for run in private if run.record is None and run.entries}
    # A ledger that is damaged does not tell what was spent, but that something was.
    begun.update((run.name, None) for run in runs if run.record is None and run.ledger_is_damaged)
    records = [run.record for run in private if run.record is not None]
    return remarks(records, searched, begun)


def _short(run: Gathered, options: Options) -> list[Section]:
    sections = [
        section("summary", lambda: summary(run)),
        section("brief", lambda: brief_scores(run)),
        section("brief", lambda: brief(run)),
        section("notes", lambda: run.guarantee.notes if run.guarantee else ()),
        section("brief", lambda: brief_cost(run.record) if run.record else ""),
        section("brief_configuration", lambda: configuration(run)),
        section("thresholds", lambda: thresholds(run, options)),
    ]
    if run.record is not None:
        sections.append(section("quiet", lambda: brief_provenance(run.record or {})))
    return [part for part in sections if part.filled]
