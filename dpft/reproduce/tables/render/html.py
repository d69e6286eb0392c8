"""A filled table as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape

from dpft.report.pages.frame import page
from dpft.reproduce.papers.schema import Column
from dpft.reproduce.tables.cells import Cell, Filled
from dpft.reproduce.tables.shown import (
    EPSILON_SIGNS,
    accountants,
    epsilon_lines,
    footnotes,
    headings,
    judged,
    labels,
    ours,
    printed,
    shown_path,
    title,
)
from dpft.reproduce.tables.verdicts import Verdict

_STYLE = """
td span { display: block; white-space: nowrap; } td.empty span { display: inline; }
.printed { color: var(--quiet); } .ours { font-weight: 600; }
.matches { color: var(--good); } .better { color: var(--better); }
.worse { color: var(--worse); } .trend { color: var(--trend); }
dt { font-weight: 600; margin-top: .5rem; } dd { margin-left: 1rem; }
"""


def as_html(filled: Filled) -> str:
    """The page; a verdict is told by its sign as well as by its colour."""
    count, names = len(filled.table.label_names), headings(filled)
    head = "".join(
        f"<th scope='col'{_kind(place < count)}>{escape(name)}</th>"
        for place, name in enumerate(names)
    )
    body = []
    for row in filled.rows:
        cells = [f"<td class='label'>{escape(label)}</td>" for label in labels(row)]
        cells += [_cell(c, column) for column, c in zip(filled.columns, row.cells, strict=True)]
        cells += [_epsilons(epsilon_lines(row, a)) for a in accountants(filled)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    notes = "\n".join(
        f"<dt>{escape(heading)}</dt><dd>{escape(text)}</dd>" for heading, text in footnotes(filled)
    )
    content = (
        f"<h1>{escape(title(filled))}</h1>\n"
        f"<div class='wide'><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + f"\n</tbody>\n</table></div>\n<dl>\n{notes}\n</dl>"
    )
    return page(title(filled), content, _STYLE)


def _kind(label: bool) -> str:
    return " class='label'" if label else ""


def _cell(cell: Cell, column: Column) -> str:
    lines = [f"<span class='printed'>{escape(printed(cell, column))}</span>"]
    if cell.ours is not None:
        runs = escape(", ".join(map(shown_path, cell.paths)), quote=True)
        lines.append(f"<span class='ours' title=\"{runs}\">{escape(ours(cell, column))}</span>")
    if judgement := judged(cell, column):
        said = escape("; ".join([str(cell.verdict), *(m.meaning for m in cell.marks)]), quote=True)
        lines.append(
            f"<span class='{_class(cell, column)}' title=\"{said}\">{escape(judgement)}</span>"
        )
    kind = " class='empty'" if cell.ours is None else ""
    return f"<td{kind}>{' '.join(lines)}</td>"


def _class(cell: Cell, column: Column) -> str:
    if cell.verdict in (Verdict.MATCHES, Verdict.TREND):
        return str(cell.verdict)
    if cell.verdict in (Verdict.ABOVE, Verdict.BELOW):
        better = (cell.verdict is Verdict.ABOVE) == column.higher_is_better
        return "better" if better else "worse"
    return "quiet"


def _epsilons(lines: list[str]) -> str:
    spans = [
        f"<span class='{'worse' if line.endswith(EPSILON_SIGNS[False]) else 'quiet'}'>"
        f"{escape(line)}</span>"
        for line in lines
    ]
    return f"<td>{''.join(spans)}</td>"
