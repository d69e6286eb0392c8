"""What was typed after ``dpft sweep``, and the lines of a list of points."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.config.overrides import check_flags

_CONFIG_DIR = ("--config-dir", "-cd")
_MULTIRUN = ("-m", "--multirun")
# Settings that a sweep makes itself, or that make no sense in one, and what to do instead.
_REFUSED = {
    "resume": "runs of a sweep continue by themselves: leave it out",
    "force": "it would run every finished point again at each start: type dpft train ... "
    "force=true for the one that is meant",
    "sweep.folder": "type --name NAME",
    "sweep.keep_going": "type --fail-fast or --keep-going",
    "sweep.list": "type --list FILE",
    "sweep.point": "type --list FILE",
    "hydra.job.chdir": "runs are looked for where they were planned: leave it out",
    "hydra.mode": "leave it out: a sweep is always Hydra's multirun",
}


def refused(setting: str) -> str:
    """What to do instead of a setting that no sweep takes."""
    return _REFUSED[setting]


@dataclass(frozen=True)
class Words:
    """What was typed, sorted.

    Attributes:
        overrides: settings, groups and sweeps over them, Hydra's own included, in their order.
        config_dir: a folder of further configs.
    """

    overrides: tuple[str, ...]
    config_dir: Path | None = None


def read_words(arguments: Sequence[str]) -> Words:
    """Sort what was typed into overrides and the flags that a sweep takes.

    Raises:
        ConfigError: for another flag, or a setting that a sweep makes itself.
    """
    check_flags([word.partition("=")[0] for word in arguments if word.startswith("-")])
    overrides: list[str] = []
    folder: str | None = None
    pending = list(arguments)
    while pending:
        word = pending.pop(0)
        flag, given, value = word.partition("=")
        if flag in _CONFIG_DIR:
            if not given and not pending:
                raise ConfigError(f"got {flag} without a folder; type {flag} DIR")
            folder = value if given else pending.pop(0)
        elif word.startswith("-") and word not in _MULTIRUN:
            raise ConfigError(
                f"dpft sweep does not take Hydra's flag {flag}; type dpft train {flag} ... for one "
                "configuration, or leave it out"
            )
        elif word not in _MULTIRUN:
            overrides.append(_allowed(word))
    if folder is not None and not Path(folder).is_dir():
        raise ConfigError(f"{flag_of(arguments)} is {folder!r}; expected a folder of configs")
    return Words(tuple(overrides), None if folder is None else Path(folder).absolute())


def flag_of(arguments: Sequence[str]) -> str:
    """How the folder of further configs was asked for, for an error message."""
    return next(w.partition("=")[0] for w in arguments if w.partition("=")[0] in _CONFIG_DIR)


def read_list(file: Path) -> tuple[tuple[str, ...], ...]:
    """The points of a list: one line each, settings as typed in a shell; ``#`` begins a comment.

    Raises:
        ConfigError: if the file cannot be read, has no points, or a line is not settings only.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the list {file} ({error}); expected a text file with the settings of one "
            "run a line"
        ) from error
    points = []
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(line, comments=True)
            points.append(tuple(_of_line(word) for word in words))
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
    points = [words for words in points if words]
    if not points:
        raise ConfigError(f"{file} holds no points; expected the settings of one run a line")
    return tuple(points)


def _of_line(word: str) -> str:
    if word.startswith("-") or not re.match(r"[+~]*[\w.@/]+(=|$)", word):
        raise ConfigError(f"got {word!r}; expected NAME=VALUE, as in eps=3")
    if _key(word).startswith(("hydra.", "hydra/", "sweep.")):
        raise ConfigError(f"got {word!r}; expected settings of a run: type it after dpft sweep")
    return _allowed(word)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _allowed(word: str) -> str:
    key = _key(word)
    if key in _REFUSED:
        raise ConfigError(f"got {word} in a sweep; {_REFUSED[key]}")
    return word
