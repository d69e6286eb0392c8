"""A filled table on the terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from dpft.report.console import Console, as_plain_text, print_notes
from dpft.report.markdown import escape
from dpft.report.markdown import table as markdown_table
from dpft.reproduce.papers.schema import show_label
from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.text_table import as_text_table, shown_extra, shown_path

WIDTH = 140
# The box and its padding take so much next to each column's text, and once more at the right end.
_GAP = 3
_STYLES = {
    **{"printed": "dim", "ours": "bold", "quiet": "dim"},
    **{"matches": "green", "better": "cyan", "worse": "red", "trend": "yellow"},
}


def show(filled: Filled, console: Console) -> None:
    """Print the table, its footnotes, and the faults of records."""
    _print(filled, console)
    print_notes((("Record", remark) for remark in filled.remarks), console)


def as_text(filled: Filled) -> str:
    """Return table and footnotes as plain text, `WIDTH` characters wide."""
    return as_plain_text(lambda console: _print(filled, console), WIDTH)


def _print(filled: Filled, console: Console) -> None:
    """Print the columns in as many blocks as the console's width asks for, each with the labels."""
    text = as_text_table(filled)
    console.print(Text(text.title, style="bold"))
    labels = [
        [Text(name), *(Text(labels[place]) for labels, _ in text.rows)]
        for place, name in enumerate(text.names)
    ]
    numbers = [
        [
            Text(heading),
            *(
                Text("\n").join(Text(line, style=_STYLES[kind]) for line, kind in cells[place])
                for _, cells in text.rows
            ),
        ]
        for place, heading in enumerate(text.headings)
    ]
    free = console.width - sum(_words(column) + _GAP for column in labels) - _GAP
    blocks: list[list[Sequence[Text]]] = [[]]
    left = free
    for column in numbers:
        needed = _width(column) + _GAP
        if blocks[-1] and needed > left:
            blocks.append([])
            left = free
        blocks[-1].append(column)
        left -= needed
    for block in blocks:
        console.print(_table(labels, block))
    print_notes(text.notes, console)


def _table(labels: Sequence[Sequence[Text]], numbers: Sequence[Sequence[Text]]) -> Table:
    """Return columns, heading first. Headings and labels wrap between words, numbers never."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading, *texts in labels:
        table.add_column(heading, min_width=_words([heading, *texts]))
    for column in numbers:
        table.add_column(column[0], justify="right", min_width=_width(column))
    for row in zip(*(column[1:] for column in (*labels, *numbers)), strict=True):
        table.add_row(*row)
    return table


def _width(numbers: Sequence[Text]) -> int:
    """Return the width of a column: its heading may wrap between words, its lines may not."""
    lines = (cell_len(line) for text in numbers[1:] for line in text.plain.splitlines())
    return max(_words(numbers[:1]), max(lines, default=0))


def _words(texts: Sequence[Text]) -> int:
    """Return the width of the longest word."""
    return max((cell_len(word) for text in texts for word in text.plain.split()), default=0)


def as_markdown(filled: Filled) -> str:
    """Return table and footnotes as Markdown."""
    text = as_text_table(filled)
    names = list(map(escape, (*text.names, *text.headings)))
    rows = [
        [*map(escape, labels), *([escape(line) for line, _ in cell] for cell in cells)]
        for labels, cells in text.rows
    ]
    notes = "\n".join(f"- **{heading}:** {escape(note)}" for heading, note in text.notes)
    table = markdown_table(names, rows, len(text.names))
    return f"### {escape(text.title)}\n\n{table}\n\n{notes}\n"


def as_csv(filled: Filled) -> str:
    """Return a line for each cell, with its row's labels as ``is:NAME``; epsilons are cells too."""
    lines: list[dict[str, Any]] = []
    for filled_row in filled.rows:
        row = filled_row.row
        place: dict[str, Any] = {f"is:{k}": show_label(value) for k, value in row.labels.items()}
        place |= {"table": filled.plan.table.name, "scale": filled.plan.scale}
        place |= {"overrides": shown_extra(filled), "why": row.why or row.taken_from or ""}
        for column, cell in zip(filled.plan.columns, filled_row.cells, strict=True):
            low, high = cell.ci95 or (None, None)
            numbers = {
                **{"printed": cell.printed, "printed_std": cell.std},
                **{"printed_low": low, "printed_high": high},
                **{"printed_unexplained": cell.unexplained, "ours": cell.ours},
                **{"deviation": cell.deviation, "difference": cell.difference},
            }
            lines.append(
                {
                    **place,
                    **{"column": column.key, "label": column.label},
                    "better": "higher" if column.higher_is_better else "lower",
                    **{name: _value(value) for name, value in numbers.items()},
                    "seeds_found": cell.found,
                    "seeds_wanted": cell.wanted,
                    "verdict": str(cell.verdict),
                    "marks": "".join(mark.letter for mark in cell.marks),
                    "runs": " ".join(map(shown_path, cell.paths)),
                }
            )
        for epsilon in filled_row.epsilons:
            numbers = {"printed": epsilon.printed, "ours": epsilon.ours}
            numbers |= {"difference": epsilon.difference}
            lines.append(
                {
                    **place,
                    "column": f"epsilon_{epsilon.accountant}",
                    "label": ", ".join(epsilon.columns),
                    **{name: _value(value) for name, value in numbers.items()},
                    "verdict": "reproduced" if epsilon.within else "not reproduced",
                    "why": epsilon.why or place["why"],
                }
            )
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _value(value: float | None) -> float | str:
    # Ten digits: what binary fractions add to them was not measured.
    return "" if value is None else float(f"{value:.10g}")


FORMATS: Mapping[str, Callable[[Filled], str]] = {
    "terminal": as_text,
    "markdown": as_markdown,
    "csv": as_csv,
}
SUFFIXES = {".txt": "terminal", ".md": "markdown", ".csv": "csv"}
