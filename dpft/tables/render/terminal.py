"""A filled table on the terminal."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpft.papers.schema import Column
from dpft.tables.cells import Cell, Filled
from dpft.tables.shown import (
    EPSILON_SIGNS,
    accountants,
    epsilon_lines,
    footnotes,
    headings,
    labels,
    lines,
    title,
)
from dpft.tables.verdicts import Verdict

WIDTH = 140


def show(filled: Filled, console: Console) -> None:
    """Print the table, its footnotes, and what is wrong with records."""
    _print(filled, console)
    for remark in filled.remarks:
        _note("Record", remark, console)


def _print(filled: Filled, console: Console) -> None:
    count, names = len(filled.table.label_names), headings(filled)
    console.print(Text(title(filled), style="bold"))
    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(names):
        table.add_column(Text(name), justify="left" if place < count else "right")
    for row in filled.rows:
        cells = [_cell(c, column) for column, c in zip(filled.columns, row.cells, strict=True)]
        epsilons = [_epsilons(epsilon_lines(row, a)) for a in accountants(filled)]
        table.add_row(*map(Text, labels(row)), *cells, *epsilons)
    console.print(table)
    for heading, text in footnotes(filled):
        _note(heading, text, console)


def _note(heading: str, text: str, console: Console) -> None:
    line = Text.assemble((f"{heading}: ", "bold"), text)
    console.print(Padding(line, (0, 0, 0, 1)), highlight=False)


def as_text(filled: Filled) -> str:
    """Table and footnotes as plain text, `WIDTH` characters wide."""
    stream = io.StringIO()
    _print(filled, Console(file=stream, width=WIDTH, color_system=None))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _cell(cell: Cell, column: Column) -> Text:
    styles = ["dim", "bold", _style(cell, column)]
    return Text("\n").join(
        Text(line, style=style) for line, style in zip(lines(cell, column), styles, strict=False)
    )


def _style(cell: Cell, column: Column) -> str:
    if cell.verdict is Verdict.MATCHES:
        return "green"
    if cell.verdict in (Verdict.ABOVE, Verdict.BELOW):
        better = (cell.verdict is Verdict.ABOVE) == column.higher_is_better
        return "cyan" if better else "red"
    return "yellow" if cell.verdict is Verdict.TREND else "dim"


def _epsilons(lines: list[str]) -> Text:
    return Text("\n").join(
        Text(line, style="red" if line.endswith(EPSILON_SIGNS[False]) else "") for line in lines
    )
