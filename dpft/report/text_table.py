"""A table as text, with three renderers: for the terminal, as Markdown and as CSV.

In Markdown, text that comes from anywhere is shown as it is.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpft.report.console import Console
from dpft.report.terminal import plain

if TYPE_CHECKING:
    from jinja2 import Environment


# The box and its padding take so much next to each column's text, and once more at the right end.
_GAP = 3
# Longer words of a heading, or of text, may be broken.
_WORD = 24
_SIGNS = re.compile(r"[\\|*_<>`~\[\]]|&(?=#?\w+;)")
# What ends a cell or begins HTML, unless a backslash escapes it already.
_UNESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)([|<])")
Cell = str | Text


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of cells, with what must be read with them.

    Attributes:
        headings: of the columns.
        rows: each with a cell for each column; a cell of several lines has line breaks.
        title: above the table.
        left: how many of the first columns are words; the others are numbers, aligned right and
            never broken. None: all are words.
        notes: heading and text of each, below the table.
        stacked: whether its words are sentences: the cells of a row are printed below each other.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    left: int | None = None
    notes: Sequence[tuple[str, str]] = ()
    stacked: bool = False

    def show(self, console: Console) -> None:
        """Print it. Numbers come in as many blocks as the width asks for, each with the words."""
        if self.title:
            console.print(Text(self.title, style="bold"))
        if self.stacked:
            for name, text, *cells in self.rows:
                console.print(Text.assemble(name, "  ", text))
                for heading, cell in zip(self.headings[2:], cells, strict=True):
                    console.print(Padding(Text.assemble(f"{heading}: ", cell), (0, 0, 0, 4)))
                console.print()
        else:
            self._show_blocks(console)
        for heading, text in self.notes:
            line = Text.assemble((f"{heading}: ", "bold"), text)
            console.print(Padding(line, (0, 0, 0, 1)), highlight=False)

    def _show_blocks(self, console: Console) -> None:
        left = len(self.headings) if self.left is None else self.left
        columns = [
            [cell if isinstance(cell, Text) else Text(cell) for cell in (heading, *cells)]
            for heading, *cells in zip(self.headings, *self.rows, strict=True)
        ]
        words, numbers = columns[:left], columns[left:]
        least = [min(_longest_word(column), _WORD) for column in words]
        free = room = console.width - sum(width + _GAP for width in least) - _GAP
        blocks: list[list[list[Text]]] = [[]]
        for column in numbers:
            if blocks[-1] and _width(column) + _GAP > room:
                blocks.append([])
                room = free
            blocks[-1].append(column)
            room -= _width(column) + _GAP
        for block in blocks:
            table = Table(box=box.SIMPLE_HEAD)
            for column, width in zip(words, least, strict=True):
                table.add_column(column[0], min_width=width, overflow="fold")
            for column in block:
                width = _width(column)
                table.add_column(column[0], justify="right", min_width=width, overflow="fold")
            for row in zip(*(column[1:] for column in (*words, *block)), strict=True):
                table.add_row(*row)
            console.print(table)

    def as_markdown(self) -> str:
        """Return title, table and notes as Markdown, in which no sign of a text has a meaning."""
        headings = [escape(heading) for heading in self.headings]
        rows = [
            [[escape(line) for line in str(cell).splitlines()] for cell in row] for row in self.rows
        ]
        blocks = [f"### {escape(self.title)}"] if self.title else []
        blocks.append(markdown_table(headings, rows, self.left))
        notes = [f"- **{heading}:** {escape(text)}" for heading, text in self.notes]
        return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])]) + "\n"

    def as_csv(self) -> str:
        """Return headings and rows as CSV."""
        return as_csv([self.headings, *([str(cell) for cell in row] for row in self.rows)])


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows, the first of which are the headings, as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def escape(text: object) -> str:
    """Return one line of Markdown that reads as the text does: no sign in it has a meaning."""
    return _SIGNS.sub(r"\\\g<0>", _one_line(text))


def inline(text: object) -> str:
    """Return one line of Markdown that may hold emphasis and code, but no cell's end and no HTML.

    It does not change what `escape` returns.
    """
    return _UNESCAPED.sub(r"\1\\\2", _one_line(text))


def markdown_table(
    headings: Sequence[object], rows: Iterable[Sequence[object]], left: int | None = None
) -> str:
    """Return a table of Markdown as in `inline`, without a line break at its end.

    A list is a cell of several lines. The first ``left`` columns are aligned left, None: all of
    them; the others are aligned right.
    """
    count = len(headings) if left is None else left
    rule = ["---" if place < count else "---:" for place in range(len(headings))]
    lines = [list(map(inline, headings)), rule, *(list(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(content: object) -> str:
    lines = content if isinstance(content, list | tuple) else [content]
    return "<br>".join(map(inline, lines))


def _one_line(text: object) -> str:
    return plain(" ".join(str(text).split()))


def environment(**options: Any) -> "Environment":
    """Return Jinja's environment over ``dpft/report/templates``."""
    from jinja2 import Environment, PackageLoader

    options |= {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(loader=PackageLoader("dpft.report"), **options)


def _width(column: Sequence[Text]) -> int:
    """Return the width of numbers: the heading may wrap between words, no line may."""
    lines = (cell_len(line) for text in column[1:] for line in text.plain.splitlines())
    return max(min(_longest_word(column[:1]), _WORD), max(lines, default=0))


def _longest_word(texts: Sequence[Text]) -> int:
    return max((cell_len(word) for text in texts for word in text.plain.split()), default=0)
