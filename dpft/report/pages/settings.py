"""Configurations: what differs from what is shipped, and between runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.config.compose import shipped
from dpft.config.schema import SHORTHANDS, Effect, Run, names_with
from dpft.privacy.spec import style_in
from dpft.report.pages.gather import Gathered

# Groups whose file a setting of theirs names; of the others the default choice is taken.
_CHOICES = {"task": "name", "model": "name", "adapt": "name", "clip": "style", "optim": "name"}
_ABSENT = object()
_SEPARATOR = re.compile(r"[/\\]")
_ROOTED = re.compile(r"(?:~|/|[A-Za-z]:\\)[^/\\]*[/\\]")
# A blank within a path is followed by a further separator before the next setting, quotation mark
# or list item, and by no path of its own.
_PATH = re.compile(
    r"(?<![\w.:/…])(?:~|/|[A-Za-z]:\\)"
    r"(?:[^\s'\",\]]|(?<![:;]) +(?=[^\s/\\~'\",\]=](?:(?! [/~])[^'\",\]=\n])*[/\\]))*"
    r"[/\\]([^\s/\\'\",\]]*)"
)


def configuration(run: Gathered) -> dict[str, Any]:
    """The choices, what differs from their shipped files, and all settings."""
    return {
        "choices": " ".join(map(without_folders, choices(run.config))),
        "changes": [
            (key, value_text(value), value_text(usual))
            for key, value, usual in (changes(run.config) if run.config else ())
        ],
        "all": [(key, value_text(value)) for key, value in flat(run.config).items()],
    }


def choices(config: Mapping[str, Any]) -> list[str]:
    """``task=e2e``, ``model=tiny`` and so on: what was chosen in each group."""
    config = _with_style(config)
    return [
        f"{group}={config[group][key]}"
        for group, key in _CHOICES.items()
        if isinstance(config.get(group), Mapping) and key in config[group]
    ]


def changes(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ from those of the files that were chosen: key, value, shipped value.

    Settings that the run does not know were not there when it was made.
    """
    chosen = dict(choice.split("=", 1) for choice in choices(config))
    usual = flat(shipped(chosen)) | {"clip.style": chosen.get("clip")}
    return [
        (key, value, usual.get(key, _ABSENT))
        for key, value in compared(config).items()
        if _json(usual.get(key)) != _json(value)
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Settings in which runs differ: key to the value of each run, as shown.

    A setting that a run does not have counts as null; the budget of a run without privacy does not
    count at all, and is shown as a dash.
    """
    each = [compared(config) for config in configs]
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for settings in each for key in settings):
        asked = [s for s in each if s] if not key.startswith("privacy.") else _with_privacy(each)
        if len({_json(settings.get(key)) for settings in asked}) > 1:
            found[key] = [value_text(settings.get(key, _ABSENT)) for settings in each]
    return found


def telling(configs: Sequence[Mapping[str, Any]], told: Sequence[str]) -> dict[str, list[str]]:
    """Few of the settings in which runs differ, enough to tell apart all that differ in any.

    Args:
        configs: of the runs.
        told: by what else they are told apart, such as their epsilons; one text for each.
    """
    different = differing(configs)
    # The group's choice says more than a setting that came with it.
    named = [f"{group}.{key}" for group, key in _CHOICES.items()]
    keys = sorted(
        (key for key in different if key != "seed"),
        key=lambda key: named.index(key) if key in named else len(named),
    )
    whole = len(set(zip(told, *(different[key] for key in keys), strict=True)))
    classes: list[tuple[str, ...]] = [(one,) for one in told]
    found: dict[str, list[str]] = {}
    while keys and len(set(classes)) < whole:
        split = {key: len(set(zip(classes, different[key], strict=True))) for key in keys}
        best = max(keys, key=lambda key: split[key])
        keys.remove(best)
        found[best] = different[best]
        classes = [(*one, value) for one, value in zip(classes, different[best], strict=True)]
    return found


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which runs are told apart, by dotted key."""
    private, config = _is_private(config), _with_style(config)
    beside = names_with(Run, Effect.PLACE, Effect.EXECUTION) | SHORTHANDS.keys()
    return {
        key: value
        for key, value in flat(config).items()
        if key.partition(".")[0] not in beside and (private or not key.startswith("privacy."))
    }


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def value_text(value: Any) -> str:
    """A setting's value as text, without the folders of a machine."""
    if value is _ABSENT:
        return "–"
    if isinstance(value, str):
        # All of it is one path, commas and quotation marks included.
        return (
            f"…/{_SEPARATOR.split(value)[-1]}" if _ROOTED.match(value) else without_folders(value)
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def without_folders(text: str) -> str:
    """Text in which of every absolute path only the last part is left.

    Where it cannot be told whether a blank belongs to a path or ends it, it belongs to it as long
    as a later part follows: too much is left out rather than too little.
    """
    return _PATH.sub(r"…/\1", text)


def _is_private(config: Mapping[str, Any]) -> bool:
    clip = config.get("clip")
    return not (isinstance(clip, Mapping) and clip.get("plan") == "none")


def _with_style(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the name of the clipping style, which says more than its parts."""
    clip = config.get("clip")
    if not isinstance(clip, Mapping) or "plan" not in clip:
        return config
    others = {name: clip[name] for name in clip if name not in ("plan", "groups", "adaptive")}
    return {**config, "clip": {"style": style_in(clip), **others}}


def _with_privacy(each: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [s for s in each if any(key.startswith("privacy.") for key in s)]


def _json(value: Any) -> str:
    # 3 and 3.0 are one number, as in a configuration's hash.
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, sort_keys=True, default=str)
