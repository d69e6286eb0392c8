"""Every figure of the three papers, as ``data/figures.yaml`` describes it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce import papers
from dpft.reproduce.figures import lists
from dpft.reproduce.figures.content import Axis, Look
from dpft.reproduce.papers import PaperTable
from dpft.reproduce.papers.reader import strict_yaml
from dpft.reproduce.papers.schema import Pattern


class FigureKind(StrEnum):
    """What a figure is made from; ``private`` is a run's noiseless files."""

    COMPUTED = "computed"
    RUNS = "runs"
    BENCH = "bench"
    PRIVATE = "private"
    NONE = "none"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PickedCells(_Strict):
    """Rows and columns of a paper's table, or of a figure's list of runs.

    Attributes:
        name: as it is typed, ``bu2023/4``; of a list, the figure's.
        columns: their keys; none: all.
        rows: labels, each with the values that are wanted; a row must have one of each.
        is_list: whether it is a list, no printed table.
    """

    name: str
    columns: tuple[str, ...] = ()
    rows: Pattern = {}
    is_list: bool = False

    def load(self) -> PaperTable:
        """The table with these rows and columns alone.

        Raises:
            PaperError: if its file does not follow the schema.
        """
        whole = lists.load(self.name) if self.is_list else papers.load(*self.name.split("/", 1))
        rows = tuple(row for row in whole.rows if row.matches(self.rows))
        columns = tuple(c for c in whole.columns if not self.columns or c.key in self.columns)
        if not rows or not columns:
            raise ConfigError(f"{self.name} has nothing of {dict(self.rows)}, {self.columns}")
        return replace(whole, rows=rows, columns=columns)


class ScoreSeries(_Strict):
    """Scores of one column in one panel, see `dpft.reproduce.figures.scores`.

    Attributes:
        panel: its title; series of one title share it, and the axes of its first series.
        column: key of the table's column.
        label: in the legend; labels of the row in braces. Each text is a series of its own.
        x: where a score stands: one of `scores.POSITIONS`, or a label of the row.
        x_axis: of ``x``.
        y: label of the other axis.
        where: as ``rows`` of `Selection`.
        look: as of `Look`.
        beside: what is written beside each point, like ``label``.
        sort: whether points are joined by ``x``; otherwise in the order of the rows.
    """

    panel: str
    column: str
    label: str = "score"
    x: str
    x_axis: Axis
    y: str = "accuracy (%)"
    where: Pattern = {}
    look: Look = "line"
    beside: str = ""
    sort: bool = True


class Figure(_Strict):
    """One figure.

    Attributes:
        name: as it is typed, ``li2022/6``.
        title: in our words.
        source: in the paper.
        build: a key of `dpft.reproduce.figures.build.BUILDERS`; None: it cannot be made.
        why: why it cannot be made.
        tables: what it needs of tables and lists.
        series: of scores; what ``all_series`` says is said of each.
        styles: clipping styles of ``dpft bench`` that are shown, with their names in the legend.
        device: which of those that were measured, from 0.
        lines: of a heat map's labels where the paper draws a line: the last value before, and the
            first after it.
        inferred: labels whose values the paper's axes do not print (the table's notes say more).
        notes: sentences of the caption that always hold.
    """

    name: str
    title: str
    source: str
    kind: FigureKind
    build: str | None = None
    why: str = ""
    tables: tuple[PickedCells, ...] = ()
    series: tuple[ScoreSeries, ...] = ()
    styles: Mapping[str, str] = {}
    device: int = 0
    lines: Mapping[str, tuple[float, float]] = {}
    inferred: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Of its files: ``li2022-6``."""
        return self.name.replace("/", "-")

    @property
    def private(self) -> bool:
        """Whether it is made without noise from training records."""
        return self.kind is FigureKind.PRIVATE

    @model_validator(mode="before")
    @classmethod
    def _spread(cls, content: dict[str, Any]) -> dict[str, Any]:
        common = content.get("all_series", {})
        series = [common | one for one in content.get("series", ())]
        return {k: v for k, v in content.items() if k != "all_series"} | {"series": series}


@functools.cache
def figures(path: Path = lists.ROOT / "figures.yaml") -> Mapping[str, Figure]:
    """Every figure by name, in the papers' order."""
    named = {name: {"name": name, **one} for name, one in strict_yaml(path).items()}
    return TypeAdapter(dict[str, Figure]).validate_python(named)


def load(name: str) -> Figure:
    """The figure of a name.

    Raises:
        ConfigError: if there is none.
    """
    known = figures()
    if name in known:
        return known[name]
    halves = [one for one in known if one.startswith(name)]
    meant = f"; did you mean {' or '.join(halves)}?" if halves else suggestion(name, known)
    raise ConfigError(f"there is no figure {name!r}{meant}; type dpft figure for all of them")
