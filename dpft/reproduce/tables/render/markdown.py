"""A table as Markdown."""

from __future__ import annotations

from dpft.report.markdown import escape, table
from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.text_table import as_text_table


def as_markdown(filled: Filled) -> str:
    """Table and footnotes."""
    text = as_text_table(filled)
    names = list(map(escape, (*text.names, *text.headings)))
    rows = [
        [*map(escape, labels), *(list(map(escape, cell.lines)) for cell in cells)]
        for labels, cells in text.rows
    ]
    notes = "\n".join(f"- **{heading}:** {escape(note)}" for heading, note in text.notes)
    return f"### {escape(text.title)}\n\n{table(names, rows, len(text.names))}\n\n{notes}\n"
