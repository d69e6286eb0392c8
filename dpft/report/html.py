"""Pages of HTML from templates: every text is escaped, and nothing is loaded or run."""

import functools
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpft.privacy.rounding import delta, up
from dpft.report.terminal import clock
from dpft.tasks.metrics.shown import figure

# Characters that HTML has no place for, lone halves of surrogate pairs, which no file can hold, and
# characters that change the order in which the text after them is read.
_UNFIT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def render(template: str, **data: Any) -> str:
    """Render a template of ``dpft/report/templates`` with the data that it names."""
    return _environment().get_template(template).render(data)


def environment(**options: Any) -> Environment:
    """Return Jinja's environment over ``dpft/report/templates``; also for other text than HTML."""
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
    pages.filters |= {"up": up, "delta": delta, "clock": clock, "thousands": "{:,}".format}
    pages.globals["figure"] = figure
    return pages


def _fit(value: object) -> object:
    # Markup comes from macros, whose texts are fit already.
    if hasattr(value, "__html__"):
        return value
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", str(value))
