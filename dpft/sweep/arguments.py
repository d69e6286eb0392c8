"""The arguments of ``dpft sweep``, and the lines of a list of points."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.config.files import regular
from dpft.config.overrides import check_flags, readable, setting_of

# Settings that a sweep makes itself, or that make no sense in one, and what to do instead.
REFUSED = {
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


@dataclass(frozen=True)
class ParsedOverrides:
    """The command line of a sweep.

    Attributes:
        overrides: settings, groups and sweeps over them, Hydra's own included, in their order.
        config_dir: a folder of further configs.
    """

    overrides: tuple[str, ...]
    config_dir: Path | None = None


def parse_arguments(arguments: Sequence[str]) -> ParsedOverrides:
    """Sort what was typed into overrides and the flags that a sweep takes.

    Raises:
        ConfigError: for another flag, or a setting that a sweep makes itself.
    """
    check_flags([word.partition("=")[0] for word in arguments if word.startswith("-")])
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--config-dir", "-cd", type=Path)
    try:
        flags, overrides = parser.parse_known_args(arguments)
    except argparse.ArgumentError:
        raise ConfigError("got --config-dir without a folder; type --config-dir DIR") from None
    for word in overrides:
        if word.startswith("-"):
            flag = word.partition("=")[0]
            raise ConfigError(
                f"dpft sweep does not take Hydra's flag {flag}; type dpft train {flag} ... for one "
                "configuration, or leave it out"
            )
        _check_allowed(word)
    overrides = [readable(word) for word in overrides]
    if flags.config_dir is not None and not flags.config_dir.is_dir():
        raise ConfigError(f"--config-dir is '{flags.config_dir}'; expected a folder of configs")
    return ParsedOverrides(tuple(overrides), flags.config_dir and flags.config_dir.absolute())


def read_list(file: Path) -> tuple[tuple[str, ...], ...]:
    """The points of a list: one line each, settings as typed in a shell; ``#`` begins a comment.

    Raises:
        ConfigError: if the file cannot be read, has no points, or a line is not settings only.
    """
    try:
        lines = regular(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the list {file} ({error}); expected a text file with the settings of one "
            "run a line"
        ) from error
    points = []
    for number, line in enumerate(lines, start=1):
        try:
            words = tuple(shlex.split(line, comments=True))
            for word in words:
                _check_setting(word)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
        if words:
            points.append(tuple(map(readable, words)))
    if not points:
        raise ConfigError(f"{file} holds no points; expected the settings of one run a line")
    return tuple(points)


def _check_setting(word: str) -> None:
    if not re.match(r"[+~]*[\w.@/]+(=|$)", word):
        raise ConfigError(f"got {word!r}; expected NAME=VALUE, as in eps=3")
    if setting_of(word).startswith(("hydra.", "hydra/", "sweep.")):
        raise ConfigError(f"got {word!r}; expected settings of a run: type it after dpft sweep")
    _check_allowed(word)


def _check_allowed(word: str) -> None:
    if setting_of(word) in REFUSED:
        raise ConfigError(f"got {word} in a sweep; {REFUSED[setting_of(word)]}")
