"""A filled table as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape

from dpft.papers.schema import Column
from dpft.tables.cells import Cell, Filled
from dpft.tables.shown import (
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
from dpft.tables.verdicts import Verdict

_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --paper: #ffffff; --line: #d0d0d0;
  --quiet: #5c5c5c; --good: #10652d; --better: #0b5a80; --worse: #a02416; --trend: #7a5200; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --paper: #161616; --line: #444;
  --quiet: #a8a8a8; --good: #6fd08c; --better: #74c4ee; --worse: #ff9384; --trend: #e8bd5a; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--paper);
  margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
h1 { font-size: 1.25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; }
th.label, td.label { text-align: left; }
thead th { border-bottom: 2px solid var(--text); }
td span { display: block; white-space: nowrap; } td.empty span { display: inline; }
.printed { color: var(--quiet); } .ours { font-weight: 600; }
.matches { color: var(--good); } .better { color: var(--better); }
.worse { color: var(--worse); } .trend { color: var(--trend); } .quiet { color: var(--quiet); }
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
    heading = escape(title(filled))
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{heading}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n"
        f"<div class='wide'><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + f"\n</tbody>\n</table></div>\n<dl>\n{notes}\n</dl>\n</body>\n</html>\n"
    )


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
