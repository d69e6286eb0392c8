"""Runs in the order of their scores, those that differ in their seed only as one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpft.config.errors import DpftError
from dpft.report.pages.gather import Gathered
from dpft.report.pages.settings import compared
from dpft.report.pages.values import finite
from dpft.tasks.metrics.shown import shown
from dpft.tasks.scores import lower_is_better, score

_SEEDS = ("seed", "privacy.noise_seed")


class Kind(NamedTuple):
    """What a score is of: those of another kind are not comparable with it."""

    task: str
    split: str
    metric: str
    lower_is_better: bool = False


class Mean(NamedTuple):
    """A mean over ``n`` runs with its standard error; None of one run.

    Two runs show both values, which lie one standard error from their mean: a deviation of two
    numbers says nothing more. Of more runs the error has two digits, and the mean as many decimals.
    """

    value: float
    error: float | None
    n: int

    def __str__(self) -> str:
        digits = 2 if abs(self.value) >= 10 else 4
        if self.error is None:
            return f"{self.value:.{digits}f}"
        if self.n == 2:
            low, high = self.value - self.error, self.value + self.error
            return f"{low:.{digits}f} and {high:.{digits}f}"
        if self.error:
            digits = min(digits, max(0, 1 - math.floor(math.log10(self.error))))
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"


@dataclass(frozen=True)
class Repeated:
    """Runs of the same settings: one, or one for each seed.

    Attributes:
        runs: at least one.
        kind: what their score is of; None: none is scored.
        score: over those that are scored.
    """

    runs: tuple[Gathered, ...]
    kind: Kind | None
    score: Mean | None

    @property
    def private(self) -> bool:
        """Whether a guarantee holds for all of them that have begun, or will."""
        return all(run.private for run in self.runs if run.begun)

    @property
    def epsilon(self) -> float | None:
        """The largest that a finished run states; None: there is none, or it is infinite."""
        given = [run.guarantee for run in self.runs if run.guarantee is not None]
        stated = [one.stated for one in given if one.private]
        known = [value for value in stated if value is not None]
        return max(known) if known and len(known) == len(given) else None

    @property
    def void(self) -> bool:
        """Whether something makes the stated epsilon untrue, or true for some only."""
        return any(run.guarantee is not None and run.guarantee.voided_by for run in self.runs)

    def mean(self, metric: str) -> Mean | None:
        """Of one score of the split that was decoded; None where no run has it."""
        return _mean([finite(metrics(run).get(metric)) for run in self.runs])

    def baseline(self, metric: str) -> float | None:
        """What the most frequent class everywhere scores, where the records have it."""
        return next(filter(None, (_baseline(run, metric) for run in self.runs)), None)


def ranked(runs: Sequence[Gathered], metric: str | None) -> list[Repeated]:
    """Runs that differ in their seed only together, and the best first.

    Only runs of one task, split and metric are ranked against each other; those without a score
    come last.

    Args:
        runs: in any order.
        metric: None: the first of each run's split.
    """
    labelled = all(run.label is not None for run in runs)
    found: dict[str, list[Gathered]] = {}
    for place, run in enumerate(runs):
        found.setdefault(_key(run, labelled) or str(place), []).append(run)
    groups = [_repeated(group, metric) for group in found.values()]
    kinds = kinds_of(groups)

    def rank(group: Repeated) -> tuple[int, float]:
        if group.kind is None or group.score is None:
            return len(kinds), 0.0
        value = group.score.value
        return kinds.index(group.kind), value if group.kind.lower_is_better else -value

    return sorted(groups, key=rank)


def kinds_of(groups: Sequence[Repeated]) -> list[Kind]:
    """The kinds of their scores, in the groups' order."""
    return list(dict.fromkeys(group.kind for group in groups if group.kind is not None))


def metrics(run: Gathered) -> Mapping[str, Any]:
    """The scores of the split that was decoded; empty where the record has none."""
    section = _section(run)
    found = section.get("metrics")
    if not isinstance(found, Mapping):
        return {}
    return {
        name: value if finite(value) is None else shown(name, value, section.get("signature"))
        for name, value in found.items()
    }


def swept(run: Gathered) -> dict[str, str]:
    """The settings that tell a point of a sweep from the others, as they were typed."""
    found: dict[str, str] = {}
    last = ""
    for word in (run.label or "").split(" "):
        key, given, value = word.partition("=")
        if given:
            found[key], last = value, key
        elif last:  # a value with a blank in it
            found[last] += f" {word}"
    return found


def _key(run: Gathered, labelled: bool) -> str:
    """Equal for runs that may be averaged; empty where nothing is known of the settings."""
    selected = bool((run.record or {}).get("selection"))
    if labelled:
        settings: Mapping[str, Any] = swept(run) or {"": run.label}
    elif run.config:
        settings = compared(run.config)
    else:
        return ""
    kept = {key: value for key, value in settings.items() if key not in _SEEDS}
    return json.dumps([kept, run.private or not run.begun, selected], default=str)


def _repeated(runs: Sequence[Gathered], metric: str | None) -> Repeated:
    entries = [entry for entry in (_scored(run, metric) for run in runs) if entry is not None]
    kind = entries[0][0] if entries else None
    return Repeated(tuple(runs), kind, _mean([value for other, value in entries if other == kind]))


def _scored(run: Gathered, metric: str | None) -> tuple[Kind, float] | None:
    """What a run's score is of, and the score; None without one."""
    if run.record is None:
        return None
    try:
        name, value = score(run.record, metric)
    except (DpftError, AttributeError, LookupError, TypeError):
        return None
    if finite(value) is None or value is None:
        return None
    task, decode = (run.config.get(group) or {} for group in ("task", "decode"))
    scored = _section(run)
    kind = Kind(
        str(task.get("name")), str(decode.get("split")), name, lower_is_better(name, scored)
    )
    return kind, shown(name, value, scored.get("signature"))


def _section(run: Gathered) -> Mapping[str, Any]:
    try:
        found = run.record["scores"][run.record["config"]["decode"]["split"]]  # type: ignore[index]
    except (LookupError, TypeError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _baseline(run: Gathered, metric: str) -> float | None:
    baselines = _section(run).get("baselines")
    return finite(baselines.get(metric)) if isinstance(baselines, Mapping) else None


def _mean(values: Sequence[float | None]) -> Mean | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    n, mean = len(known), math.fsum(known) / len(known)
    if n == 1:
        return Mean(mean, None, n)
    variance = math.fsum((value - mean) ** 2 for value in known) / (n - 1)
    return Mean(mean, math.sqrt(variance / n), n)
