"""The arguments of ``dpft sweep``, and its points: expanded, composed and checked beforehand."""

import argparse
import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.compose import compose, initialised, sweeper
from dpft.config.errors import ConfigError, DpftError
from dpft.config.foreign import regular
from dpft.config.overrides import check_budget, check_flags, hydra_errors, readable, setting_of
from dpft.config.schema import Run, parse
from dpft.runs.folders import run_path
from dpft.runs.identity import config_hash

# Settings that a sweep makes itself, or that make no sense in one, and what to do instead.
REFUSED = {
    "resume": "runs of a sweep continue by themselves: leave it out",
    "force": "it would run every finished point again at each start: type dpft train ... "
    "force=true for the one that is meant",
    "sweep.folder": "type --name NAME",
    "sweep.list": "type --list FILE",
    "sweep.point": "type --list FILE",
    "hydra.job.chdir": "runs are looked for where they were planned: leave it out",
    "hydra.searchpath": "type --config-dir DIR",
    "hydra.mode": "leave it out: a sweep is always Hydra's multirun",
}
# Groups of settings that one tunes.
_TUNED = ("adapt", "clip", "optim", "decode")
_MOST = 1000  # points, each of which is checked before the first one runs
_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class ParsedOverrides:
    """The command line of a sweep."""

    overrides: tuple[str, ...]  # settings, groups and sweeps over them, Hydra's own included
    config_dir: Path | None = None  # a folder of further configs


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    overrides: tuple[str, ...]  # its settings, as they would be typed after ``dpft train``
    digest: str  # the hash of its configuration
    path: Path  # its run directory
    private: bool  # whether it trains with privacy


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep."""

    points: tuple[SweepPoint, ...]  # each configuration once, in Hydra's order
    merged: int  # how many further points have the configuration of an earlier one
    runs_dir: Path  # where run directories are made
    runs: tuple[Run, ...] = ()  # the points' settings, checked, in the same order


def parse_arguments(arguments: Sequence[str]) -> ParsedOverrides:
    """Divide arguments into overrides and the flags that a sweep takes.

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
    if flags.config_dir is not None and not flags.config_dir.is_dir():
        raise ConfigError(f"--config-dir is '{flags.config_dir}'; expected a folder of configs")
    return ParsedOverrides(
        tuple(map(readable, overrides)), flags.config_dir and flags.config_dir.absolute()
    )


def read_list(file: Path) -> tuple[tuple[str, ...], ...]:
    """Read a list of points: one line each, settings as typed in a shell; ``#`` starts a comment.

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
                if not re.match(r"[+~]*[\w.@/]+(=|$)", word):
                    raise ConfigError(f"got {word!r}; expected NAME=VALUE, as in eps=3")
                if setting_of(word).startswith(("hydra.", "hydra/", "sweep.")):
                    raise ConfigError(
                        f"got {word!r}; expected settings of a run: type it after dpft sweep"
                    )
                _check_allowed(word)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{file}, line {number}: {error}") from error
        if words:
            points.append(tuple(map(readable, words)))
    if not points:
        raise ConfigError(f"{file} holds no points; expected the settings of one run a line")
    return tuple(points)


def _check_allowed(word: str) -> None:
    if setting_of(word) in REFUSED:
        raise ConfigError(f"got {word} in a sweep; {REFUSED[setting_of(word)]}")


def make_plan(arguments: ParsedOverrides, lines: Sequence[Sequence[str]] = ()) -> SweepPlan:
    """Expand and check the points of a sweep.

    Raises:
        ConfigError: for the first point that could not run; two points that would share a folder.
    """
    with initialised():
        with hydra_errors():
            parsed = _parsed(arguments.overrides)
            task = [str(o.input_line) for o in parsed if not o.is_hydra_override()]
            check_budget(task)
            folder = arguments.config_dir
            search = [] if folder is None else [f'hydra.searchpath=["file://{folder}"]']
            for one in parsed:
                if one.is_hydra_override() and one.is_sweep_override():
                    raise ConfigError(
                        f"got {one.input_line}; expected one value: Hydra's own settings are not "
                        "swept"
                    )
            fixed = [*search, *(o.input_line for o in parsed if not o.is_sweep_override())]
            base, chosen = compose(fixed), sweeper(fixed)
        runs_dir = Path(str(base["runs_dir"]))
        if chosen["_target_"] != _BASIC:
            raise ConfigError(
                f"got {chosen['_target_'].rpartition('.')[2]}, which chooses points by the scores "
                "of earlier ones; dpft sweep checks all points before the first one runs, so give "
                "values: leave out hydra/sweeper=..."
            )
        params = [f"{key}={value}" for key, value in (chosen.get("params") or {}).items()]
        with hydra_errors():
            from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

            batches = BasicSweeper.split_arguments(_parsed([*params, *task]), None)
        grid = [point for batch in batches for point in batch]
        choices = [(*chosen, *line) for chosen, line in itertools.product(grid, lines or [()])]
        if len(choices) > _MOST:
            raise ConfigError(f"got {len(choices):,} points; expected at most {_MOST:,} in a sweep")
        runs = [
            _checked(f"point {number} of {len(choices)}", choice, search)
            for number, choice in enumerate(choices, start=1)
        ]
    unique = _unique(choices, runs)
    points, settings = tuple(point for point, _ in unique), tuple(run for _, run in unique)
    return SweepPlan(points, len(runs) - len(unique), runs_dir, settings)


def labels(points: Iterable[Sequence[str]]) -> list[str]:
    """Return each point's overrides that not all points have."""
    listed = [tuple(words) for words in points]
    shared = set(listed[0]).intersection(*listed[1:]) if len(listed) > 1 else set()
    return [" ".join(w for w in words if w not in shared) or "the defaults" for words in listed]


def chooses_by_test(plan: SweepPlan) -> bool:
    """Return whether runs that differ in tuned settings are scored on the test split.

    The papers choose by validation scores and report test scores (Li et al. 2022, Appendix I).
    """
    scored = [run for run in plan.runs if run.decode.split == "test"]
    tuned = {str([run.task["name"], *map(run.raw.get, _TUNED)]) for run in scored}
    return len(tuned) > len({run.task["name"] for run in scored})


def _parsed(overrides: Sequence[str]) -> list[Any]:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    # The loader is asked for the choices that a glob(...) matches.
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def _checked(place: str, overrides: Sequence[str], search: Sequence[str]) -> Run:
    try:
        run = parse(compose([*search, *overrides]))
        run_path(run)  # a name is made of settings, all of which must be there
        if run.force:  # of a preset; typed, it is refused before
            raise ConfigError(f"got force=true; {REFUSED['force']}")
        return run
    except DpftError as error:
        typed = " ".join(overrides) or "the defaults"
        raise ConfigError(f"{place} ({typed}): {error}") from error


def _unique(
    choices: Sequence[tuple[str, ...]], runs: Sequence[Run]
) -> list[tuple[SweepPoint, Run]]:
    """Return each configuration once."""
    kept: dict[str, tuple[SweepPoint, Run]] = {}
    folders: dict[Path, SweepPoint] = {}
    for overrides, run in zip(choices, runs, strict=True):
        point = SweepPoint(overrides, config_hash(run.identity()), run_path(run), run.clip.private)
        other = folders.setdefault(point.path, point)
        if other.digest != point.digest:
            raise ConfigError(
                f"two points would share the folder {point.path}: '{' '.join(other.overrides)}' "
                f"and '{' '.join(overrides)}'; leave out name=, or give each its own"
            )
        first, _ = kept.setdefault(point.digest, (point, run))
        if first.path != point.path:
            raise ConfigError(
                f"'{' '.join(first.overrides)}' and '{' '.join(overrides)}' are the same settings "
                f"in two folders, {first.path} and {point.path}; expected one run of them, since "
                "each spends a budget: leave out name= and runs_dir=, or type seed=0,1"
            )
    return list(kept.values())
