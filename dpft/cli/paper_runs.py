"""The recorded and the missing runs of a paper's table or figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from dpft.cli.output import print_table
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo
from dpft.reproduce.tables.cells import Missing
from dpft.reproduce.tables.plan import SCALES
from dpft.reproduce.tables.record_index import FOLDERS, Index, make_index, usual_folders


@dataclass(frozen=True)
class Request:
    """The words after the name of a table or figure, as `make_plan` and `make_index` take them.

    ``launcher`` has words for Hydra, of the sweep that makes the missing runs.
    """

    scale: str
    seeds: list[int] | None
    settings: list[str]
    launcher: list[str]
    folders: Sequence[Path]

    @classmethod
    def parse(
        cls,
        words: Sequence[str],
        scale: str | None,
        seeds: str | None,
        folders: Sequence[Path] | None,
        *,
        only_missing: bool = False,
        run: bool = False,
    ) -> Request:
        """Read the options, of which the scale may also be among the ``words``.

        Raises:
            ConfigError: two scales, an unknown one, seeds that are no different numbers, or
                ``--missing`` with ``--run``.
        """
        if only_missing and run:
            raise ConfigError("got --missing and --run; expected one of them")
        typed = [word.partition("=")[2] for word in words if word.startswith("scale=")]
        if scale is not None and any(value != scale for value in typed):
            raise ConfigError(f"got --scale {scale} and scale={typed[-1]}; expected one of them")
        scale = typed[-1] if typed else scale or "paper"
        if scale not in SCALES:
            raise ConfigError(
                f"scale is {scale!r}{suggestion(scale, SCALES)}; expected {' or '.join(SCALES)}"
            )
        parts = [] if seeds is None else [part.strip() for part in seeds.split(",")]
        if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
            raise ConfigError(
                f"--seeds is {seeds!r}; expected different numbers: type --seeds 0,1,2"
            )
        numbers = None if seeds is None else [int(part) for part in parts]
        others = [word for word in words if not word.startswith("scale=")]
        launcher = [word for word in others if word.lstrip("+~").startswith(("hydra/", "hydra."))]
        settings = [word for word in others if word not in launcher]
        return cls(scale, numbers, settings, launcher, folders or ())

    @property
    def runs_dir(self) -> Path:
        """The folder of new runs."""
        given = [word.partition("=")[2] for word in self._runs_dir]
        return Path(given[-1].strip("'\"") if given else "runs")

    @property
    def _runs_dir(self) -> list[str]:
        return [word for word in self.settings if word.startswith("runs_dir=")]

    def index(self, *, made: bool = False) -> Index:
        """Return the records in the folders, with those that were just ``made`` in a new one."""
        own = self.runs_dir
        folders = [*self.folders, own] if made and own.is_dir() else list(self.folders)
        if not self.folders:
            usual = dict.fromkeys([*usual_folders(FOLDERS), own])
            folders = [folder for folder in usual if folder.is_dir()]
        return make_index(folders)

    def make(self, stem: str, missing: Sequence[Missing], *, keep_going: bool) -> typer.Exit | None:
        """Make the missing runs; a sweep that did not finish is returned, to be raised at the end.

        Their settings are written to a file of that ``stem`` below the runs' folder.
        """
        if not missing:
            echo("nothing is missing", err=True)
            return None
        from dpft.cli import sweep

        file = self.runs_dir / f"{stem}-{self.scale}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{one.line}\n" for one in missing), encoding="utf-8")
        echo(f"{len(missing)} runs are missing; their settings are in {file}", err=True)
        words = [*self.launcher, *self._runs_dir]
        try:
            sweep.run_sweep(words, file=file, keep_going=keep_going, chooses=False)
        except typer.Exit as stopped:
            return stopped
        return None


def print_missing(missing: Sequence[Missing]) -> None:
    """Print the commands of the missing runs."""
    for one in missing:
        echo(f"dpft train {one.line}")
    said = f"{len(missing)} runs are missing; --run makes them"
    echo(said if missing else "nothing is missing", err=True)


def print_list(kind: str, rows: Iterable[Sequence[str]], between: Sequence[str] = ()) -> None:
    """Print all tables or figures: name, the columns ``between``, cells by scale, title."""
    scales = [f"scale={scale}" for scale in SCALES]
    print_table([kind, *between, *scales, "title"], rows, right=scales)


def print_lacking(count: int, typed: str) -> None:
    """Print how many runs are missing, if any, and how to name or make them."""
    if count:
        echo(
            f"{count} runs are missing: {typed} --missing shows their commands, --run makes them",
            err=True,
        )
