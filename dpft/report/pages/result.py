"""The first thing on a page: the result in a sentence, and what its epsilon means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.config.flags import sentences
from dpft.privacy.meaning import in_words, odds
from dpft.privacy.rounding import up
from dpft.report.pages.gather import Gathered
from dpft.report.pages.guarantee import brief
from dpft.report.pages.ranking import Kind, Repeated, kinds_of
from dpft.report.pages.settings import telling

# Results of more tasks, splits and metrics than these are only in the table.
_MOST_KINDS = 4
_MOST_BUDGETS = 4
_MOST_EPSILONS = 6


def of_one(group: Repeated) -> list[tuple[str, str]]:
    """One run's budget, its score, and what the most frequent class would score.

    Returns:
        A sentence, and what is to be read beside it.
    """
    run = group.runs[0]
    labels = "; ".join(sentences((run.record or {}).get("flags")))
    if run.record is None:
        return [(brief(run), labels)]
    score = "not scored yet"
    if group.kind is not None and group.score is not None:
        score = f"{group.kind.metric} {group.score} on {_examples(run)}{group.kind.split} examples"
        score += _majority(group, group.kind)
    return [(_capital(f"{_budget(group)}, {score}."), labels)]


def of_several(groups: Sequence[Repeated]) -> list[tuple[str, str]]:
    """For each task, split and metric the best score at each epsilon, and without privacy.

    Args:
        groups: the best first.

    Returns:
        Sentences, each with the names of the runs that it is about.
    """
    names = dict(zip(map(id, groups), _names(groups), strict=True))
    kinds, sentences = kinds_of(groups), []
    for kind in kinds[:_MOST_KINDS]:
        budgets: dict[str, list[Repeated]] = {}
        for group in (group for group in groups if group.kind == kind):
            budgets.setdefault(_budget(group), []).append(group)
        # Ascending, and no privacy last.
        ordered = sorted(budgets.items(), key=lambda item: _least(item[1][0]))
        if len(ordered) > _MOST_BUDGETS:
            ordered = [*ordered[: _MOST_BUDGETS - 2], *ordered[-2:]]
        figures = ", ".join(f"{found[0].score} with {budget}" for budget, found in ordered)
        of = f"{kind.task}, {kind.split}: " if len(kinds) > 1 else ""
        first = ordered[0][1][0]
        sentence = _capital(f"{of}{kind.metric} {figures}{_majority(first, kind)}.")
        which = (f"{budget}: {_which(found, names)}" for budget, found in ordered)
        sentences.append((sentence, _capital(f"{'; '.join(which)}.")))
    return sentences


def means(groups: Sequence[Repeated]) -> dict[str, Any] | None:
    """What epsilon means, with the numbers of the best private setting.

    Args:
        groups: the best first.

    Returns:
        None where no finished run has an epsilon that means something.
    """
    by_group = [
        [
            one
            for run in group.runs
            if (one := run.guarantee) and one.kind == "private" and one.meaning
        ]
        for group in groups
    ]
    known = [one for those in by_group for one in those]
    if not known:
        return None
    # Of seeds the largest, as in the headline.
    shown = max(next(filter(None, by_group)), key=lambda one: _or_infinite(one.stated))
    stated = {one.stated for one in known if one.stated is not None and one.stated <= 30}
    others = sorted(stated - {shown.stated})
    return {
        "epsilon": up(shown.stated),
        "paragraphs": in_words(shown),
        "others": [(up(value), *odds(value)) for value in others][:_MOST_EPSILONS],
        "noun": shown.noun,
        "minded": any(one.caveats for one in known),
    }


def _budget(group: Repeated) -> str:
    given = [run.guarantee for run in group.runs if run.guarantee is not None]
    voided_by = {void for one in given for void in one.voided_by}
    if not given or not all(one.private for one in given):
        return "no privacy guarantee"
    if all(one.kind == "nothing released" for one in given):
        return "epsilon 0 (untrained)"
    if voided_by & {"shuffled", "refuted"}:
        return f"an epsilon of {up(group.epsilon)} that is not proven"
    if group.epsilon is None:
        return "no finite epsilon"
    known = " to those who do not know the noise seed" if "known seed" in voided_by else ""
    return f"epsilon {up(group.epsilon)}{known}"


def _least(group: Repeated) -> float:
    return _or_infinite(group.epsilon) if group.private else math.inf


def _or_infinite(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _which(found: Sequence[Repeated], names: Mapping[int, str]) -> str:
    """The best of the settings with one budget, and how it was found."""
    best, parts = found[0], [names[id(found[0])]]
    if len(found) > 1:
        parts.append(f"the best of {len(found)}")
    if best.score is not None and best.score.n == 2:
        parts.append("2 seeds")
    elif best.score is not None and best.score.n > 1:
        parts.append(f"mean of {best.score.n} seeds ± standard error")
    return ", ".join(parts)


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _majority(group: Repeated, kind: Kind) -> str:
    constant = group.baseline(kind.metric)
    return "" if constant is None else f", majority class {constant:.4f}"


def _examples(run: Gathered) -> str:
    scores: Mapping[str, Any] = (run.record or {}).get("scores") or {}
    scored = scores.get(str((run.config.get("decode") or {}).get("split"))) or {}
    return f"{scored['examples']:,} " if "examples" in scored else ""


def _names(groups: Sequence[Repeated]) -> list[str]:
    """The name of a run, or the settings that tell an average from the others."""
    columns = telling([group.runs[0].config for group in groups], list(map(_budget, groups)))
    found = []
    for place, group in enumerate(groups):
        if len(group.runs) == 1:
            found.append(group.runs[0].name)
        else:
            told = " ".join(f"{key}={values[place]}" for key, values in columns.items())
            found.append(told or group.runs[0].name)
    return found
