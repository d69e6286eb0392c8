"""Lists of runs for figures whose points no table prints.

A list has a table's form (`dpft.reproduce.papers`), so that planning, missing runs and matching of
records are those of tables.
"""

from __future__ import annotations

from pathlib import Path

from dpft.reproduce.papers import PaperTable, read

ROOT = Path(__file__).resolve().parent / "data"


def load(name: str) -> PaperTable:
    """The list of the figure of that name.

    Raises:
        PaperError: if it is missing or does not follow the schema of tables.
    """
    return read(ROOT / f"{name}.yaml", is_list=True)


def names() -> list[str]:
    """Every list as its figure is typed."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml"))
