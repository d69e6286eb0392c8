"""Text and tables as Markdown, for text that comes from anywhere, and the templates' loader."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dpft.report.terminal import plain

if TYPE_CHECKING:
    from jinja2 import Environment

_SIGNS = re.compile(r"[\\|*_<>`~\[\]]|&(?=#?\w+;)")
# What ends a cell or begins HTML, unless a backslash escapes it already.
_UNESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)([|<])")


def escape(text: object) -> str:
    """One line of Markdown that reads as the text does: no sign in it has a meaning."""
    return _SIGNS.sub(r"\\\g<0>", _one_line(text))


def inline(text: object) -> str:
    """One line of Markdown that may hold emphasis and code, but ends no table cell and has no HTML.

    What `escape` returns stays as it is.
    """
    return _UNESCAPED.sub(r"\1\\\2", _one_line(text))


def table(
    headings: Sequence[object], rows: Iterable[Sequence[object]], left: int | None = None
) -> str:
    """A table without a line break at its end.

    Args:
        headings: of the columns, Markdown as in `inline`.
        rows: cells, of the same number; a list is a cell of several lines.
        left: how many of the columns are aligned left; the others are aligned right. None: all.
    """
    count = len(headings) if left is None else left
    rule = ["---" if place < count else "---:" for place in range(len(headings))]
    lines = [list(map(inline, headings)), rule, *(list(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(content: object) -> str:
    lines = content if isinstance(content, list | tuple) else [content]
    return "<br>".join(map(inline, lines))


def _one_line(text: object) -> str:
    return plain(" ".join(str(text).split()))


def environment(**options: Any) -> "Environment":
    """Return Jinja's environment over ``dpft/report/templates``."""
    from jinja2 import Environment, PackageLoader

    options |= {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(loader=PackageLoader("dpft.report"), **options)
