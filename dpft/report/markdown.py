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
    """Return one line of Markdown that reads as the text does: no sign in it has a meaning."""
    return _SIGNS.sub(r"\\\g<0>", _one_line(text))


def inline(text: object) -> str:
    """Return one line of Markdown that may hold emphasis and code, but no cell's end and no HTML.

    It does not change what `escape` returns.
    """
    return _UNESCAPED.sub(r"\1\\\2", _one_line(text))


def table(
    headings: Sequence[object], rows: Iterable[Sequence[object]], left: int | None = None
) -> str:
    """Return a table of Markdown as in `inline`, without a line break at its end.

    A list is a cell of several lines. The first ``left`` columns are aligned left, None: all of
    them; the others are aligned right.
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
