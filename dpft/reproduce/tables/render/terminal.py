"""A table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from dpft.report.console import Console, as_plain_text, print_notes
from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.text_table import TextCell, as_text_table

WIDTH = 140
# What the box and its padding take beside each column's text; once more at the right end.
_GAP = 3
_STYLES = {
    **{"printed": "dim", "ours": "bold", "quiet": "dim"},
    **{"matches": "green", "better": "cyan", "worse": "red", "trend": "yellow"},
}


def show(filled: Filled, console: Console) -> None:
    """Print the table, its footnotes, and what is wrong with records."""
    _print(filled, console)
    print_notes((("Record", remark) for remark in filled.remarks), console)


def _print(filled: Filled, console: Console) -> None:
    text = as_text_table(filled)
    console.print(Text(text.title, style="bold"))
    labels = [
        [Text(name), *(Text(labels[place]) for labels, _ in text.rows)]
        for place, name in enumerate(text.names)
    ]
    numbers = [
        [Text(heading), *(_cell(cells[place]) for _, cells in text.rows)]
        for place, heading in enumerate(text.headings)
    ]
    for block in _blocks(labels, numbers, console.width):
        console.print(_table(labels, block))
    print_notes(text.notes, console)


def _table(labels: Sequence[Sequence[Text]], numbers: Sequence[Sequence[Text]]) -> Table:
    """Columns, heading first. Headings and labels wrap between words, numbers never."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading, *texts in labels:
        table.add_column(heading, min_width=_words([heading, *texts]))
    for column in numbers:
        table.add_column(column[0], justify="right", min_width=_width(column))
    for row in zip(*(column[1:] for column in (*labels, *numbers)), strict=True):
        table.add_row(*row)
    return table


def _blocks(
    labels: Sequence[Sequence[Text]], numbers: Sequence[Sequence[Text]], width: int
) -> list[list[Sequence[Text]]]:
    """The columns of numbers in as many blocks as fit into ``width``, each behind the labels."""
    used = sum(_words(column) + _GAP for column in labels) + _GAP
    blocks: list[list[Sequence[Text]]] = [[]]
    left = width - used
    for column in numbers:
        needed = _width(column) + _GAP
        if blocks[-1] and needed > left:
            blocks.append([])
            left = width - used
        blocks[-1].append(column)
        left -= needed
    return blocks


def _width(numbers: Sequence[Text]) -> int:
    """What a column of numbers needs: its heading may wrap between words, its lines may not."""
    return max(_words(numbers[:1]), _lines(numbers[1:]))


def _words(texts: Sequence[Text]) -> int:
    """Width of the longest word."""
    return max((cell_len(word) for text in texts for word in text.plain.split()), default=0)


def _lines(texts: Sequence[Text]) -> int:
    """Width of the longest line."""
    return max((cell_len(line) for text in texts for line in text.plain.splitlines()), default=0)


def as_text(filled: Filled) -> str:
    """Table and footnotes as plain text, `WIDTH` characters wide."""
    return as_plain_text(lambda console: _print(filled, console), WIDTH)


def _cell(cell: TextCell) -> Text:
    if cell.short:
        return Text(cell.lines[0], style="dim")
    return Text("\n").join(Text(part.text, style=_STYLES[part.kind]) for part in cell.parts)
