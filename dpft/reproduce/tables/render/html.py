"""A table as one HTML page that needs nothing else."""

from __future__ import annotations

from dpft.report.html import render
from dpft.reproduce.tables.cells import Filled
from dpft.reproduce.tables.text_table import as_text_table


def as_html(filled: Filled) -> str:
    """The page; a verdict has its sign as well as its colour."""
    return render("paper_table.html", table=as_text_table(filled))
