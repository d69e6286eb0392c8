"""Check the size of each part of the repository against budget.toml: python scripts/budget.py

A limit may be lowered at any time. It is raised only together with a reason on the same line.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


PATTERNS = {"lines": "**/*.py", "words": "**/*.md", "files": "**/*.*"}


def size(place: Path, unit: str) -> int:
    """Return how many files a folder has, or lines of Python, or words of Markdown."""
    files = [place] if place.is_file() else list(place.glob(PATTERNS[unit]))
    if unit == "files":
        return sum(file.is_file() and file.suffix != ".pyc" for file in files)
    texts = [file.read_text(encoding="utf-8") for file in files]
    return sum(len(text.split() if unit == "words" else text.splitlines()) for text in texts)


def main() -> None:
    budget = tomllib.loads((ROOT / "budget.toml").read_text(encoding="utf-8"))
    over = [
        f"{place} has {found:,} {unit}; expected at most {limit:,}"
        for unit, limits in budget.items()
        for place, limit in limits.items()
        if (found := size(ROOT / place, unit)) > limit
    ]
    sys.exit("\n".join(over) or None)


if __name__ == "__main__":
    main()
