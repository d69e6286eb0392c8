"""A table as one HTML page that needs nothing else."""

from __future__ import annotations

from dpft.report.pages.frame import Html, page, table, text
from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.text_table import TextCell, as_text_table

_STYLE = """
td span { display: block; white-space: nowrap; } td .short span { display: inline; }
.printed { color: var(--quiet); } .ours { font-weight: 600; }
.matches { color: var(--good); } .better { color: var(--better); }
.worse { color: var(--worse); } .trend { color: var(--trend); }
dt { font-weight: 600; margin-top: .5rem; } dd { margin-left: 1rem; }
"""


def as_html(filled: Filled) -> str:
    """The page; a verdict is told by its sign as well as by its colour."""
    shown = as_text_table(filled)
    rows = [[*labels, *map(_cell, cells)] for labels, cells in shown.rows]
    numbers = table((*shown.names, *shown.headings), rows, len(shown.names))
    notes = "\n".join(f"<dt>{text(h)}</dt><dd>{text(note)}</dd>" for h, note in shown.notes)
    body = f"<h1>{text(shown.title)}</h1>\n{numbers}\n<dl>\n{notes}\n</dl>"
    return page(shown.title, body, _STYLE)


def _cell(cell: TextCell) -> Html:
    spans = []
    for part in cell.parts:
        title = f' title="{text(part.title)}"' if part.title else ""
        spans.append(f"<span class='{part.kind}'{title}>{text(part.text)}</span>")
    lines = " ".join(spans)
    return Html(f"<span class='short'>{lines}</span>" if cell.short else lines)
