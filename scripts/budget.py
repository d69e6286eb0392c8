"""Check the size and the words of each part of the repository: python scripts/budget.py

budget.toml has a limit for each part. A limit may be lowered at any time. It is raised only
together with a reason on the same line. The sections are:

- lines: of Python
- files: of any kind
- words: of Markdown
- small_files: modules of fewer than 40 lines, but for ``__init__.py``; they join their importer
- dialect: words that a reader stumbles on, and docstrings that are no sentence

The places of the last two are printed where a limit is exceeded.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = 40
DIALECT = re.compile(
    r"\b(told|heard|heed|nobody|whoever|somebody|beside|begun|alike|of its own|at hand"
    r"|refused by name)\b", re.IGNORECASE,
)  # fmt: skip
NO_SENTENCE = re.compile(r"(Of|What|Whose|Whether)\b")


def found(place: Path, section: str) -> Iterator[str]:
    """Yield each thing in a file or folder that a section of the budget counts, by its place."""
    suffixes = {"words": (".md",), "dialect": (".py", ".yaml", ".toml", ".md")}
    for file in [place] if place.is_file() else sorted(place.rglob("*")):
        name = file.relative_to(ROOT).as_posix()
        if not file.is_file() or file.suffix == ".pyc":
            continue
        if section == "files":
            yield name
        if section == "files" or file.suffix not in suffixes.get(section, (".py",)):
            continue
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        if section == "lines":
            yield from lines
        elif section == "words":
            yield from text.split()
        elif section == "small_files" and len(lines) < SMALL and file.name != "__init__.py":
            yield f"{name}: {len(lines)} lines"
        elif section == "dialect" and file != Path(__file__).resolve():  # which has the list
            for number, line in enumerate(lines, 1):
                yield from (f"{name}:{number}: {word[0]}" for word in DIALECT.finditer(line))
            docstrings = no_sentences(text) if file.suffix == ".py" else ()
            yield from (f"{name}:{docstring}" for docstring in docstrings)


def no_sentences(text: str) -> Iterator[str]:
    """Yield line and beginning of each docstring that does not begin as a sentence does."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and NO_SENTENCE.match(docstring):
                yield f"{node.body[0].lineno}: {docstring.partition(chr(10))[0][:60]}"


def main() -> None:
    budget = tomllib.loads((ROOT / "budget.toml").read_text(encoding="utf-8"))
    over = []
    for section, limits in budget.items():
        for place, limit in limits.items():
            things = list(found(ROOT / place, section))
            if len(things) > limit:
                over.append(f"{place} has {len(things):,} {section}; expected at most {limit:,}")
                if section in ("dialect", "small_files"):
                    print(*things, sep="\n")
    sys.exit("\n".join(over) or None)


if __name__ == "__main__":
    main()
