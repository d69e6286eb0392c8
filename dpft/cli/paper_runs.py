"""The recorded and the missing runs of a paper's table or figure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import typer

from dpft.config.errors import SettingError, one_of
from dpft.report.terminal import echo
from dpft.reproduce.tables.cells import Missing
from dpft.reproduce.tables.planned import SCALES
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
    def parse(cls, words: Sequence[str], seeds: str | None, folders: Sequence[Path] | None) -> Self:
        """Read the words and the options."""
        scale = next((w.partition("=")[2] for w in words if w.startswith("scale=")), "paper")
        one_of("scale", scale, SCALES)
        try:
            numbers = None if seeds is None else [*dict.fromkeys(map(int, seeds.split(",")))]
        except ValueError:
            advice = "type --seeds 0,1,2"
            raise SettingError("--seeds", seeds, "numbers with commas", advice) from None
        others = [word for word in words if not word.startswith("scale=")]
        launcher = [word for word in others if word.lstrip("+~").startswith(("hydra/", "hydra."))]
        settings = [word for word in others if word not in launcher]
        return cls(scale, numbers, settings, launcher, folders or ())

    @property
    def runs_dir(self) -> Path:
        """The folder of new runs."""
        given = [w.partition("=")[2] for w in self.settings if w.startswith("runs_dir=")]
        return Path(given[-1].strip("'\"") if given else "runs")

    def index(self, *, made: bool = False) -> Index:
        """Return the records in the folders, with those that were just ``made`` in a new one."""
        own = [self.runs_dir] if self.runs_dir.is_dir() else []
        if not self.folders:
            return make_index(dict.fromkeys([*usual_folders(FOLDERS), *own]))
        return make_index([*self.folders, *(own if made else [])])

    def make(self, stem: str, missing: Sequence[Missing]) -> typer.Exit | None:
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
        words = [*self.launcher, *(w for w in self.settings if w.startswith("runs_dir="))]
        try:
            sweep.run_sweep(words, file=file)
        except typer.Exit as stopped:
            return stopped
        return None

    def print_lacking(self, verb: str, name: str, count: int) -> None:
        """Print how many runs are missing, if any, and how to name or make them."""
        if count:
            typed = shlex.join(["dpft", verb, name, f"scale={self.scale}"])
            options = "--missing shows their commands, --run makes them"
            echo(f"{count} runs are missing: {typed} {options}", err=True)


def print_missing(missing: Sequence[Missing]) -> None:
    """Print the commands of the missing runs."""
    for one in missing:
        echo(f"dpft train {one.line}")
    said = f"{len(missing)} runs are missing; --run makes them"
    echo(said if missing else "nothing is missing", err=True)
