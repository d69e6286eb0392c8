"""The frame of a page: one file that asks for nothing, for light and dark screens and for paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

# Even if some text were not escaped, nothing could be loaded or run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

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
.quiet { color: var(--quiet); }
"""

# What HTML has no place for, lone halves of surrogate pairs, which no file can hold, and what makes
# the text after it read in another order than it is written.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Html(str):
    """A piece of a page that is escaped already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as text of a page, or of an attribute in either quotation mark."""
    if isinstance(value, Html):
        return value
    return Html(escape(_UNFIT.sub("\N{REPLACEMENT CHARACTER}", str(value)), quote=True))


def marked(line: str) -> Html:
    """A line of Markdown with ``**bold**`` and ``code``, as the model card has them."""
    escaped = text(line.removeprefix("> "))
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escaped)
    return Html(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))


def joined(parts: Iterable[str]) -> Html:
    """Pieces below each other; text among them is escaped."""
    return Html("\n".join(text(part) for part in parts if part))


def paragraph(content: object, kind: str = "") -> Html:
    """A paragraph, of a class where ``kind`` is given."""
    return Html(f"<p{_class(kind)}>{text(content)}</p>")


def listed(items: Iterable[object], kind: str = "") -> Html:
    """A list of points."""
    return Html(f"<ul{_class(kind)}>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>")


def folded(summary: str, content: str) -> Html:
    """What is shown when it is asked for, and on paper."""
    return Html(f"<details><summary>{text(summary)}</summary>\n{text(content)}\n</details>")


def facts(rows: Iterable[tuple[object, object]]) -> Html:
    """A table of names and values."""
    body = "\n".join(
        f"<tr><th scope='row' class='label'>{text(name)}</th><td class='label'>{text(value)}</td>"
        "</tr>"
        for name, value in rows
    )
    return Html(f"<div class='wide'><table class='facts'>\n{body}\n</table></div>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], labels: int = 1) -> Html:
    """A table with headings; the first ``labels`` columns are words, the others numbers."""
    titles = "".join(
        f"<th scope='col'{_class('label' * (place < labels))}>{text(name)}</th>"
        for place, name in enumerate(head)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_class('label' * (place < labels))}>{text(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return Html(
        f"<div class='wide'><table>\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        "</table></div>"
    )


def page(title: str, body: str, style: str = "") -> str:
    """The whole file.

    Args:
        title: plain text.
        body: HTML, everything in it escaped.
        style: CSS after that of all pages.
    """
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{text(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _class(kind: str) -> str:
    return f" class='{kind}'" if kind else ""
