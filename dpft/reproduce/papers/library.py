"""The tables that are there, by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.papers.reader import read
from dpft.reproduce.papers.schema import PAPERS, PaperTable

ROOT = Path(__file__).resolve().parent


def load(paper: str, number: str) -> PaperTable:
    """The table ``paper/number``.

    Raises:
        ConfigError: if there is none; says which are there.
        PaperError: if its file does not follow the schema.
    """
    name, known = f"{paper}/{number}", names()
    if name not in known:
        raise ConfigError(
            f"there is no table {name!r}{suggestion(name, known)}; expected one of "
            f"{', '.join(known) or '(none are here)'}: type dpft table for their titles"
        )
    return read(ROOT / paper / f"{number}.yaml")


def names() -> list[str]:
    """Every table as it is typed, papers by year, numbers in natural order."""
    listed = [f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml")]
    return sorted(listed, key=_natural)


def _natural(name: str) -> tuple[Any, ...]:
    paper, _, number = name.partition("/")
    place = PAPERS.index(paper) if paper in PAPERS else len(PAPERS)
    parts = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.findall(r"\d+|\D+", number)]
    return (place, paper, parts)
