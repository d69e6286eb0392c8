"""The content of a file of claims; ``docs/how-to/tables.md`` explains each key."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Strict, Tag, TypeAdapter

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.papers import (
    PAPERS,
    FileSchema,
    Pattern,
    Range,
    Text,
    Words,
    strict_yaml,
    validated,
)

ROOT = Path(__file__).resolve().parent / "data"


def limits(ends: tuple[float | None, float | None]) -> tuple[float, float]:
    """Return the ends of a range, None being no bound."""
    return -math.inf if ends[0] is None else ends[0], math.inf if ends[1] is None else ends[1]


def in_words(ends: tuple[float | None, float | None], unit: str = "") -> str:
    """Return a range for people: ``at least 3``."""
    low, high = ends
    if low is None or high is None:
        return f"at most {high:g}{unit}" if low is None else f"at least {low:g}{unit}"
    return f"{low:g}{unit}" if high - low < 1e-6 else f"{low:g} to {high:g}{unit}"


@dataclass(frozen=True)
class CellsCheck(FileSchema):
    """Rows of a table against other rows of it, without ``second`` against all others, by column.

    The first number less the second, positive where the first is better, must be in a range of
    ``points`` or of ``percent`` of the second; or the first ``value`` itself.
    With variants each row that ``where`` allows is replaced by one for every variant, which has
    these overrides in addition to its own and the label ``variant``. Columns ``columns_of`` another
    table have no printed numbers here. ``scale``: ``printed`` numbers alone, these and runs at the
    ``paper`` scale, or runs at the ``laptop`` scale alone; None: all of them.
    """

    table: Annotated[Text, Field(alias="cells")]
    expected: Annotated[
        Mapping[Literal["points", "percent", "value"], Range],
        Field(alias="expect", min_length=1, max_length=1),
    ]
    first: Pattern
    second: Pattern = field(default_factory=dict)
    where: Pattern = field(default_factory=dict)
    free: Words = ()
    columns: Words = ()
    columns_of: Text | None = None
    variants: Mapping[str, Words] = field(default_factory=dict)
    scale: Literal["printed", "paper", "laptop"] | None = None

    def bounds(self, second: float) -> tuple[float, float]:
        """Return the range of the difference in points, for the second number."""
        ((unit, ends),) = self.expected.items()
        low, high = limits(ends)
        one = abs(second) / 100 if unit == "percent" else 1.0
        return low * one, high * one

    @property
    def in_words(self) -> str:
        """The expectation for people: ``difference at least -3%``."""
        ((unit, ends),) = self.expected.items()
        before = "" if unit == "value" else "difference "
        return before + in_words(ends, "%" * (unit == "percent"))


@dataclass(frozen=True)
class FigureCheck(CellsCheck):
    """The same in a figure's own list of runs, which prints no numbers."""

    table: Annotated[Text, Field(alias="figure")]


@dataclass(frozen=True)
class BenchCheck(FileSchema):
    """A ratio of two clipping styles in files of ``dpft bench``.

    ``speed`` is at the largest ``batch``; no ``command`` measures these two again.
    """

    quantity: Annotated[Literal["time", "memory", "batch", "speed"], Field(alias="bench")]
    first: Words
    second: Words
    ratio: Range
    models: Words
    command: Text | None = None
    tokens: Annotated[int, Strict(), Field(ge=1)] = 0


@dataclass(frozen=True)
class ComputedCheck(FileSchema):
    """A number that follows without a run and must be in a range.

    ``of`` has a mapping of arguments for each call; of a list each value is taken, with each value
    of the other lists. ``what`` and ``shows`` have arguments and results in braces.
    """

    function: Annotated[str, Field(alias="computed")]
    what: Text
    within: Range
    of: tuple[Mapping[str, Any], ...] = ({},)
    shows: Text = "{value:.6g}"


_KINDS = ("cells", "figure", "bench", "computed")
Check = Annotated[
    Annotated[CellsCheck, Tag("cells")]
    | Annotated[FigureCheck, Tag("figure")]
    | Annotated[BenchCheck, Tag("bench")]
    | Annotated[ComputedCheck, Tag("computed")],
    Discriminator(lambda check: next((kind for kind in _KINDS if kind in check), None)),
]


@dataclass(frozen=True)
class Claim(FileSchema):
    """A headline claim: all of its checks, and why a part of it ``cannot`` be tested.

    ``reading`` says how words like "about" are taken.
    """

    paper: str
    number: Annotated[str, Field(pattern=r"^c\d{2}$")]
    says: Text
    source: Text
    checks: tuple[Check, ...] = ()
    cannot: Words = ()
    reading: Text | None = None

    @property
    def name(self) -> str:
        """The claim as it is typed: ``li2022/c05``."""
        return f"{self.paper}/{self.number}"


_CLAIMS = TypeAdapter(Annotated[dict[str, Claim], Field(min_length=1)])


def read(path: Path) -> list[Claim]:
    """Return the claims in a file, in its order; its name is the paper's."""
    content: Any = strict_yaml(path)
    if isinstance(content, Mapping):
        content = {
            number: one | {"paper": path.stem, "number": number} if isinstance(one, dict) else one
            for number, one in content.items()
        }
    return list(validated(_CLAIMS, content, path).values())


def load(name: str | None = None) -> list[Claim]:
    """Return every claim, those of a paper (``li2022``), or one (``li2022/c05``)."""
    paper = (name or "").partition("/")[0]
    claims = [one for each in PAPERS if paper in ("", each) for one in read(ROOT / f"{each}.yaml")]
    found = [claim for claim in claims if name in (None, paper, claim.name)]
    if not found:
        near = suggestion(name or "", [*PAPERS, *(claim.name for claim in claims)])
        raise ConfigError(f"there is no claim {name!r}{near}; type dpft claims for all of them")
    return found
