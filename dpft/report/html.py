"""Pages of HTML from templates: every text is escaped, and nothing is loaded or run."""

from __future__ import annotations

import functools
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

# What HTML has no place for, lone halves of surrogate pairs, which no file can hold, and what makes
# the text after it read in another order than it is written.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_MARKED = re.compile(r"\*\*(.+?)\*\*|`(.+?)`")


def render(template: str, **data: Any) -> str:
    """A template of ``dpft/report/templates`` with the data that it names."""
    return _environment().get_template(template).render(data)


def environment(**options: Any) -> Environment:
    """Jinja's environment over ``dpft/report/templates``; also for what is no HTML."""
    return Environment(
        loader=PackageLoader("dpft.report"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


@functools.cache
def _environment() -> Environment:
    pages = environment(autoescape=True, finalize=_fit, undefined=StrictUndefined)
    pages.filters["spans"] = _spans
    return pages


def _fit(value: object) -> object:
    """What an expression of a template writes. Markup comes from macros, whose texts are fit."""
    if hasattr(value, "__html__"):
        return value
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", str(value))


def _spans(line: str) -> list[tuple[str, str]]:
    """Element and text of the parts of a line of Markdown with ``**bold**`` and ``code``."""
    parts, end = [], 0
    for match in _MARKED.finditer(line):
        element = "code" if match[1] is None else "strong"
        parts += [("", line[end : match.start()]), (element, match[1] or match[2])]
        end = match.end()
    return [*parts, ("", line[end:])]
