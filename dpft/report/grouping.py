"""Runs next to each other: which is best, which are repetitions, and what differs."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from dpft.config.errors import DpftError
from dpft.config.schema import SHORTHANDS, Effect, Run, names_with
from dpft.privacy.spec import style_in
from dpft.report.gather import Gathered, section
from dpft.tasks.scores import lower_is_better, score, shown

_CHOICES = ("task.name", "model.name", "adapt.name", "clip.plan", "clip.groups", "optim.name")
_SEEDS = ("seed", "privacy.noise_seed")
# The folders of an absolute path; a space ends a path within a text.
_FOLDERS = re.compile(r"(?<![\w.:/…])(?:~|/|[A-Za-z]:\\)[^\s'\",\]]*[/\\]")


class Kind(NamedTuple):
    """The task, split and metric of a score: those of another kind are not comparable with it."""

    task: str
    split: str
    metric: str
    lower: bool = False  # whether lower scores are better


Scored = tuple[Kind, float] | None


def ranked(runs: Sequence[Gathered]) -> list[tuple[Gathered, Scored]]:
    """Sort runs by their first score, the best of one kind first, those without a score last."""
    found = [(run, first_score(run)) for run in runs]
    kinds = [scored[0] for _, scored in found if scored is not None]

    def rank(item: tuple[Gathered, Scored]) -> tuple[int, float]:
        if item[1] is None:
            return len(kinds), 0.0
        kind, value = item[1]
        return kinds.index(kind), value if kind.lower else -value

    return sorted(found, key=rank)


def metrics(run: Gathered) -> dict[str, float | None]:
    """Return the scores of the split that was decoded; None is not finite."""
    split = str(section(run.config, "decode").get("split"))
    scored = section(section(run.record, "scores"), split)
    return {
        name: value if value is None else shown(name, value, scored.get("signature"))
        for name, value in section(scored, "metrics").items()
    }


def first_score(run: Gathered) -> Scored:
    """Return the first score of the split that was decoded; None if it was not scored."""
    try:
        name, _ = score(run.record or {}, None)
    except (DpftError, LookupError):  # not scored
        return None
    value = metrics(run).get(name)
    task, split = section(run.config, "task").get("name"), run.config["decode"]["split"]
    lower = section(section(run.record, "scores"), str(split)).get("lower") or ()
    kind = Kind(str(task), str(split), name, lower_is_better(name, lower))
    return None if value is None else (kind, value)


def references(run: Gathered, others: Sequence[Gathered]) -> dict[str, tuple[Gathered, float]]:
    """Return the best run without privacy and one that was not trained, with their scores.

    Only runs of the same base model and task settings, scored on the same records.
    """

    def scale(one: Gathered) -> list[Any]:
        kind, _ = first_score(one) or (None, None)
        of = section(section(one.record, "scores"), kind.split if kind else "")
        base = section(one.record, "model").get("weights_sha256") or one.config.get("model")
        return [kind, base, one.config.get("task"), of.get("examples"), of.get("references")]

    names = {"none": "without privacy", "nothing released": "before training"}
    found: dict[str, tuple[Gathered, float]] = {}
    for other, scored in ranked(others):
        how = names.get(other.guarantee.kind) if other.guarantee is not None else None
        if how and scored and other is not run and scale(other) == scale(run):
            found.setdefault(how, (other, scored[1]))
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return settings in which runs differ, choices first: key to the value of each, as text.

    A setting that a run does not have counts as null; the budget of a run without privacy does not
    count. Both are a dash. Seeds are left out.
    """
    each = [compared(config) for config in configs]
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for settings in each for key in settings):
        asked = [settings for settings in each if settings]
        if key.startswith("privacy."):
            asked = [s for s in asked if any(other.startswith("privacy.") for other in s)]
        # 3 and 3.0 are one number, as in a configuration's hash.
        distinct = {json.dumps(s.get(key), default=str).removesuffix(".0") for s in asked}
        if len(distinct) > 1 and key not in _SEEDS:
            found[key] = [value_text(s[key]) if key in s else "–" for s in each]
    return dict(sorted(found.items(), key=lambda item: item[0] not in _CHOICES))


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which runs are distinguished, by dotted key."""
    clip = section(config, "clip")
    private = clip.get("plan") != "none"
    if "plan" in clip:  # the name of the style says more than its parts
        others = {name: clip[name] for name in clip if name not in ("plan", "groups", "adaptive")}
        config = {**config, "clip": {"style": style_in(clip), **others}}
    ignored = names_with(Run, Effect.PLACE, Effect.EXECUTION) | SHORTHANDS.keys()
    return {
        key: value
        for key, value in flat(config).items()
        if key.partition(".")[0] not in ignored and (private or not key.startswith("privacy."))
    }


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        whole = f"{prefix}{key}"
        found |= flat(value, f"{whole}.") if isinstance(value, Mapping) else {whole: value}
    return found


def value_text(value: Any) -> str:
    """Return a setting's value as text, without the folders of a machine."""
    if isinstance(value, str):
        whole = value.startswith(("/", "~"))  # one path, blanks and commas included
        return f"…/{PurePath(value).name}" if whole else without_folders(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def without_folders(text: str) -> str:
    """Return text in which only the last part is left of every absolute path."""
    return _FOLDERS.sub("…/", text)
