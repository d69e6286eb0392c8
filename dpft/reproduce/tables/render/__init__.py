"""One filled table in five forms, all from the same structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.render.html import as_html
from dpft.reproduce.tables.render.latex import as_latex
from dpft.reproduce.tables.render.markdown import as_markdown
from dpft.reproduce.tables.render.terminal import as_text, show
from dpft.reproduce.tables.render.values import as_csv

FORMATS: Mapping[str, Callable[[Filled], str]] = {
    "terminal": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "html": as_html,
}
SUFFIXES = {
    ".txt": "terminal",
    ".md": "markdown",
    ".tex": "latex",
    ".csv": "csv",
    ".html": "html",
}

__all__ = ["FORMATS", "SUFFIXES", "as_csv", "as_html", "as_latex", "as_markdown", "as_text", "show"]
