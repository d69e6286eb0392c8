"""A sweep's points: expanded by Hydra's own parser, composed and checked before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.compose import compose_here, initialised
from dpft.config.errors import ConfigError, DpftError
from dpft.config.overrides import refusals_told
from dpft.config.schema import Run, Sweep, build, parse
from dpft.runs.identity import config_hash
from dpft.runs.paths import run_path
from dpft.sweep.words import Words, refused

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        overrides: its settings, as they would be typed after ``dpft train``.
        digest: the hash of its configuration.
        path: its run directory.
        private: whether it trains with privacy.
    """

    overrides: tuple[str, ...]
    digest: str
    path: Path
    private: bool


@dataclass(frozen=True)
class Plan:
    """What a sweep will run.

    Attributes:
        points: each configuration once, in Hydra's order; None where a sweeper chooses them as it
            goes, as Optuna does.
        merged: how many further points have the configuration of an earlier one.
        runs_dir: where run directories are made.
        metric: the score by which runs are compared; None: the first of each run's split.
        runs: the points' settings, checked, in the same order; none where a sweeper chooses them.
        searched: what a sweeper's points start from, where it chooses them; else None.
    """

    points: tuple[Point, ...] | None
    merged: int
    runs_dir: Path
    metric: str | None = None
    runs: tuple[Run, ...] = ()
    searched: Run | None = None


def make_plan(words: Words, lines: Sequence[Sequence[str]] = ()) -> Plan:
    """Expand and check.

    Args:
        words: what was typed.
        lines: a list's points, each combined with every point of ``words``.

    Raises:
        ConfigError: for the first point that could not run; two points that would share a folder.
    """
    with initialised():
        with refusals_told():
            task, own = _split(words)
            base, sweeper = _base([*own, *task])
        runs_dir = Path(str(base["runs_dir"]))
        metric = build(Sweep, base["sweep"], "sweep").metric
        if sweeper["_target_"] != _BASIC:
            if lines:
                raise ConfigError(
                    f"got --list beside {sweeper['_target_'].rpartition('.')[2]}; a list is run by "
                    "Hydra's basic sweeper: leave out --list, or hydra/sweeper=..."
                )
            return Plan(None, 0, runs_dir, metric, searched=parse(base))
        params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
        with refusals_told():
            grid = _grid([*params, *task])
        choices = [[*chosen, *line] for chosen, line in itertools.product(grid, lines or [()])]
        search = [word for word in own if word.startswith("hydra.searchpath=")]
        runs = [
            (tuple(choice), _checked(number, len(choices), choice, search))
            for number, choice in enumerate(choices, start=1)
        ]
    kept = _unique(runs)
    points, settings = tuple(point for point, _ in kept), tuple(run for _, run in kept)
    return Plan(points, len(runs) - len(kept), runs_dir, metric, settings)


def labels(points: Iterable[Sequence[str]]) -> list[str]:
    """What tells each point from the others: its overrides that not all of them have."""
    listed = [tuple(words) for words in points]
    shared = set(listed[0]).intersection(*listed[1:]) if len(listed) > 1 else set()
    return [" ".join(w for w in words if w not in shared) or "the defaults" for words in listed]


def _split(words: Words) -> tuple[list[str], list[str]]:
    """Overrides of the job, and of Hydra itself."""
    parsed = _parsed(words.overrides)
    task = [override for override in parsed if not override.is_hydra_override()]
    own = [override for override in parsed if override.is_hydra_override()]
    lines = [str(override.input_line) for override in own]
    swept = [str(override.input_line) for override in own if override.is_sweep_override()]
    if swept:
        raise ConfigError(f"got {swept[0]}; expected one value: Hydra's own settings are not swept")
    if words.config_dir is not None:
        if any(line.startswith("hydra.searchpath=") for line in lines):
            raise ConfigError("got --config-dir and hydra.searchpath; expected one of them")
        lines.append(f'hydra.searchpath=["file://{words.config_dir}"]')
    return [str(override.input_line) for override in task], lines


def _parsed(overrides: Sequence[str]) -> list[Any]:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    # The loader is asked for the choices that a glob(...) matches.
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def _base(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of what is not swept, and the settings of Hydra's sweeper."""
    from hydra import compose
    from omegaconf import OmegaConf

    fixed = [o.input_line for o in _parsed(overrides) if not o.is_sweep_override()]
    hydra = compose("config", overrides=fixed, return_hydra_config=True).hydra
    sweeper: Any = OmegaConf.to_container(hydra.sweeper, resolve=False)
    return compose_here(fixed), sweeper


def _grid(overrides: Sequence[str]) -> list[list[str]]:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    batches = BasicSweeper.split_arguments(_parsed(overrides), None)
    return [list(point) for batch in batches for point in batch]


def _checked(number: int, total: int, overrides: Sequence[str], search: Sequence[str]) -> Run:
    try:
        run = parse(compose_here([*search, *overrides]))
        run_path(run)  # a name is made of settings, all of which must be there
        if run.force:  # of a preset; typed, it is refused before
            raise ConfigError(f"got force=true; {refused('force')}")
        return run
    except DpftError as error:
        raise ConfigError(
            f"point {number} of {total} ({' '.join(overrides) or 'the defaults'}): {error}"
        ) from error


def _unique(runs: Sequence[tuple[tuple[str, ...], Run]]) -> list[tuple[Point, Run]]:
    """Each configuration once."""
    found: dict[str, tuple[Point, Run]] = {}
    folders: dict[Path, Point] = {}
    for overrides, run in runs:
        digest, path = config_hash(run.identity()), run_path(run)
        point = Point(overrides, digest, path, run.clip.private)
        other = folders.setdefault(path, point)
        if other.digest != digest:
            raise ConfigError(
                f"two points would share the folder {path}: '{' '.join(other.overrides)}' and "
                f"'{' '.join(overrides)}'; leave out name=, or give each its own"
            )
        found.setdefault(digest, (point, run))
    return list(found.values())
