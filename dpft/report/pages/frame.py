"""Pieces of HTML for the pages of `dpft table`, which are not made from a template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dpft.report.html import fit, render


class Html(str):
    """A piece of a page that is escaped already."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def text(value: object) -> Html:
    """Any value as text of a page, or of an attribute in either quotation mark."""
    return Html(value if isinstance(value, Html) else escape(str(fit(value))))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], labels: int = 1) -> Html:
    """A table with headings; the first ``labels`` columns are words, the others numbers."""
    return Html(render("table.html", head=head, rows=rows, labels=labels))


def page(title: str, body: str, style: str = "") -> str:
    """The whole file.

    Args:
        title: plain text.
        body: HTML, everything in it escaped.
        style: CSS after that of all pages.
    """
    return render("framed.html", title=title, body=Html(body), style=Html(style))
