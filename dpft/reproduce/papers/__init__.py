"""Tables of the papers as data, one YAML file a table: ``<paper>/<number>.yaml``.

The files hold what a paper prints and the settings that repeat it. ``docs/how-to/tables.md`` says
how to add one.
"""

from dpft.reproduce.papers.reader import load, names, read
from dpft.reproduce.papers.schema import Column, Laptop, PaperError, PaperTable, Row

__all__ = ["Column", "Laptop", "PaperError", "PaperTable", "Row", "load", "names", "read"]
