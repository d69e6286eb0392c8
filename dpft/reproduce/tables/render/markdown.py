"""A filled table as Markdown."""

from __future__ import annotations

import re

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
    count, names = len(filled.table.label_names), headings(filled)
    rows = [names, ["---" if place < count else "---:" for place in range(len(names))]]
    for row in filled.rows:
        cells = [lines(c, column) for column, c in zip(filled.columns, row.cells, strict=True)]
        cells += [epsilon_lines(row, accountant) for accountant in accountants(filled)]
        rows.append([*map(_escaped, labels(row)), *("<br>".join(map(_escaped, c)) for c in cells)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in [list(map(_escaped, names)), *rows[1:]])
    notes = "\n".join(f"- **{heading}:** {_escaped(text)}" for heading, text in footnotes(filled))
    return f"### {_escaped(title(filled))}\n\n{table}\n\n{notes}\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*_<>`~\[\]])", r"\\\1", text)
