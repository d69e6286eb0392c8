"""The settings that a run directory keeps, read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dpft.config.errors import ConfigError, suggestion
from dpft.config.files import regular
from dpft.runs.hidden import PRIVATE, check_no_trial

_VALUES = 100_000
_NAMED = 3  # runs, where one is not found


def stored_config(path: Path) -> tuple[str, dict[str, Any]]:
    """Text and content of a run's ``config.yaml``.

    Args:
        path: the run directory.

    Raises:
        ConfigError: if it is not there, or damaged.
    """
    file = path / "config.yaml"
    try:
        text = regular(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} holds no config.yaml that can be read; expected a run directory: "
            f"{runs_beside(path)}"
        ) from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is damaged ({_line(error)}); restore the file") from error
    except RecursionError:
        raise ConfigError(f"{file} is damaged (nested too deep); restore the file") from None
    if _is_large(content):
        raise ConfigError(
            f"{file} holds more than {_VALUES:,} values, perhaps one of them again and again; "
            "expected the settings of a run: restore the file"
        )
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is damaged: it holds no settings; restore the file")
    return text, content


def runs_beside(path: Path) -> str:
    """What to type instead, where there are runs to go on with."""
    folders = dict.fromkeys((path, path.parent, Path("runs")))
    try:
        runs = [
            child
            for folder in folders
            if folder.is_dir() and not _of_trials(folder)
            for child in folder.iterdir()
            if child.name != PRIVATE and (child / "config.yaml").is_file()
        ]
        latest = sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)
    except OSError:
        latest = []
    if not latest:
        return "give the folder itself"
    same = [run for run in latest if run.name == path.name]
    close = f", {same[0]}" if same else suggestion(path.name, [run.name for run in latest])
    more = f" and {len(latest) - _NAMED} more" if len(latest) > _NAMED else ""
    named = ", ".join(map(str, latest[:_NAMED]))
    return f"give the folder itself{close}; the latest here: {named}{more}"


def _of_trials(folder: Path) -> bool:
    """Whether what lies in a folder is secret trials, which are not even to be counted."""
    try:
        check_no_trial(folder)
    except ConfigError:
        return True
    return False


def _is_large(content: Any) -> bool:
    """Whether there are more values than any run has settings; a few lines of YAML can say so."""
    pending, seen = [content], 0
    while pending and seen <= _VALUES:
        value = pending.pop()
        seen += 1
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return seen > _VALUES


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "no YAML" if mark is None else f"no YAML in line {mark.line + 1}"
