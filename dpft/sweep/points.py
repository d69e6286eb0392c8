"""A sweep's points: expanded by Hydra's own parser, composed and checked before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.compose import compose, initialised, sweeper
from dpft.config.errors import ConfigError, DpftError
from dpft.config.overrides import check_budget, refusals_told
from dpft.config.schema import Run, Sweep, build, parse
from dpft.runs.folders import run_path
from dpft.runs.identity import config_hash
from dpft.sweep.arguments import REFUSED, ParsedOverrides

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_SEARCH = "hydra.searchpath="


@dataclass(frozen=True)
class SweepPoint:
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
class SweepPlan:
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

    points: tuple[SweepPoint, ...] | None
    merged: int
    runs_dir: Path
    metric: str | None = None
    runs: tuple[Run, ...] = ()
    searched: Run | None = None


def make_plan(arguments: ParsedOverrides, lines: Sequence[Sequence[str]] = ()) -> SweepPlan:
    """Expand and check.

    Args:
        arguments: what was typed.
        lines: a list's points, each combined with every point of ``arguments``.

    Raises:
        ConfigError: for the first point that could not run; two points that would share a folder.
    """
    with initialised():
        with refusals_told():
            parsed = _parsed(arguments.overrides)
            task = [str(o.input_line) for o in parsed if not o.is_hydra_override()]
            check_budget(task)
            search = _search_path(parsed, arguments.config_dir)
            fixed = _fixed(parsed, search)
            base, chosen = compose(fixed), sweeper(fixed)
        runs_dir = Path(str(base["runs_dir"]))
        metric = build(Sweep, base["sweep"], "sweep").metric
        if chosen["_target_"] != _BASIC:
            if lines:
                raise ConfigError(
                    f"got --list beside {chosen['_target_'].rpartition('.')[2]}; a list is run by "
                    "Hydra's basic sweeper: leave out --list, or hydra/sweeper=..."
                )
            return SweepPlan(None, 0, runs_dir, metric, searched=parse(base))
        params = [f"{key}={value}" for key, value in (chosen.get("params") or {}).items()]
        with refusals_told():
            grid = _grid([*params, *task])
        choices = [(*chosen, *line) for chosen, line in itertools.product(grid, lines or [()])]
        runs = [
            _checked(number, len(choices), choice, search)
            for number, choice in enumerate(choices, start=1)
        ]
    unique = _unique(choices, runs)
    points, settings = tuple(point for point, _ in unique), tuple(run for _, run in unique)
    return SweepPlan(points, len(runs) - len(unique), runs_dir, metric, settings)


def labels(points: Iterable[Sequence[str]]) -> list[str]:
    """What tells each point from the others: its overrides that not all of them have."""
    listed = [tuple(words) for words in points]
    shared = set(listed[0]).intersection(*listed[1:]) if len(listed) > 1 else set()
    return [" ".join(w for w in words if w not in shared) or "the defaults" for words in listed]


def _parsed(overrides: Sequence[str]) -> list[Any]:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser

    # The loader is asked for the choices that a glob(...) matches.
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(overrides))


def _search_path(parsed: Sequence[Any], config_dir: Path | None) -> list[str]:
    """Where Hydra looks for configs besides dpft's own, as an override, if it was typed."""
    search = [o.input_line for o in parsed if o.input_line.startswith(_SEARCH)]
    if config_dir is None:
        return search
    if search:
        raise ConfigError("got --config-dir and hydra.searchpath; expected one of them")
    return [f'{_SEARCH}["file://{config_dir}"]']


def _fixed(parsed: Sequence[Any], search: list[str]) -> list[str]:
    """The overrides that are not swept."""
    swept = [o.input_line for o in parsed if o.is_hydra_override() and o.is_sweep_override()]
    if swept:
        raise ConfigError(f"got {swept[0]}; expected one value: Hydra's own settings are not swept")
    lines = [o.input_line for o in parsed if not o.is_sweep_override()]
    return [*search, *(line for line in lines if line not in search)]


def _grid(overrides: Sequence[str]) -> list[list[str]]:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    batches = BasicSweeper.split_arguments(_parsed(overrides), None)
    return [list(point) for batch in batches for point in batch]


def _checked(number: int, total: int, overrides: Sequence[str], search: Sequence[str]) -> Run:
    try:
        run = parse(compose([*search, *overrides]))
        run_path(run)  # a name is made of settings, all of which must be there
        if run.force:  # of a preset; typed, it is refused before
            raise ConfigError(f"got force=true; {REFUSED['force']}")
        return run
    except DpftError as error:
        raise ConfigError(
            f"point {number} of {total} ({' '.join(overrides) or 'the defaults'}): {error}"
        ) from error


def _unique(
    choices: Sequence[tuple[str, ...]], runs: Sequence[Run]
) -> list[tuple[SweepPoint, Run]]:
    """Each configuration once."""
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
                "each spends a budget of its own: leave out name= and runs_dir=, or type seed=0,1"
            )
    return list(kept.values())
