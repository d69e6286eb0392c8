"""Tables of the papers as data, one YAML file a table: ``<paper>/<number>.yaml``."""

from dpft.reproduce.papers.reader import load, names, read
from dpft.reproduce.papers.schema import Column, Laptop, PaperError, PaperTable, Row

__all__ = ["Column", "Laptop", "PaperError", "PaperTable", "Row", "load", "names", "read"]
