"""A filled table as Markdown."""

from __future__ import annotations

from dpft.report.markdown import escape, table
from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.shown import (
    accountants,
    epsilon_lines,
    footnotes,
    headings,
    labels,
    lines,
    title,
)


def as_markdown(filled: Filled) -> str:
    """Table and footnotes; a cell's lines are parted by ``<br>``."""
    rows = []
    for row in filled.rows:
        cells = [lines(c, column) for column, c in zip(filled.columns, row.cells, strict=True)]
        cells += [epsilon_lines(row, accountant) for accountant in accountants(filled)]
        numbers = [list(map(escape, cell)) for cell in cells]
        rows.append([*map(escape, labels(row)), *numbers])
    names = [escape(name) for name in headings(filled)]
    text = table(names, rows, left=len(filled.table.label_names))
    notes = "\n".join(f"- **{heading}:** {escape(note)}" for heading, note in footnotes(filled))
    return f"### {escape(title(filled))}\n\n{text}\n\n{notes}\n"
