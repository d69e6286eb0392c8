"""The content of a file of claims; ``docs/how-to/tables.md`` explains each key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag, TypeAdapter

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.papers import (
    PAPERS,
    FileSchema,
    Number,
    Pattern,
    Range,
    Text,
    Words,
    in_order,
    strict_yaml,
    validated,
)

ROOT = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True)
class Expected(FileSchema):
    """The expected relation of the first of two numbers to the second.

    ``best``: the best of the first rows is above the best of all others; ``apart``: better by
    ``low`` to ``high``; ``ratio``: first / second is in that range. Two means over seeds of ours
    are as good as each other within ``equivalence`` per cent of the second.
    """

    kind: Literal["above", "not_below", "on_par", "best", "apart", "ratio", "value"]
    low: Number | None = None
    high: Number | None = None
    equivalence: Annotated[Number, Field(gt=0)] | None = None

    @property
    def no_difference(self) -> bool:
        """Return whether it expects no difference that matters."""
        return self.kind in ("not_below", "on_par")

    def __post_init__(self) -> None:
        in_order((self.low, self.high))
        if (self.kind in ("apart", "ratio", "value")) == (self.low is self.high is None):
            raise ValueError(f"got {self.kind}, expected numbers for apart, ratio and value alone")


def _unfolded(value: Any) -> Any:
    """Return ``above``, ``{on_par: 2}`` or ``{apart: [3, 5]}`` as the fields of `Expected`."""
    if not (isinstance(value, Mapping) and len(value) == 1):
        return {"kind": value}
    ((kind, ends),) = value.items()
    if kind in ("not_below", "on_par"):
        return {"kind": kind, "equivalence": ends}
    low, high = ends if isinstance(ends, list) and len(ends) == 2 else (ends, ends)
    return {"kind": kind, "low": low, "high": high}


@dataclass(frozen=True)
class CellsCheck(FileSchema):
    """Rows of a table against other rows of it, column by column.

    With variants each row that ``where`` allows is replaced by one for every variant, which has
    these overrides in addition to its own and the label ``variant``.
    """

    table: Annotated[Text, Field(alias="cells")]
    expected: Annotated[Expected, BeforeValidator(_unfolded), Field(alias="expect")]
    first: Pattern
    second: Pattern = field(default_factory=dict)
    where: Pattern = field(default_factory=dict)
    free: Words = ()
    columns: Words = ()
    variants: Mapping[str, Words] = field(default_factory=dict)
    sides: tuple[Literal["printed", "paper", "laptop"], ...] = ("printed", "paper", "laptop")

    def __post_init__(self) -> None:
        if (self.expected.kind in ("best", "value")) == bool(self.second):
            raise ValueError("expected no `second` for best and value, and one for the others")


@dataclass(frozen=True)
class FigureCheck(CellsCheck):
    """The same in a figure's own list of runs, which prints no numbers."""

    table: Annotated[Text, Field(alias="figure")]
    sides: tuple[Literal["printed", "paper", "laptop"], ...] = ("paper", "laptop")


@dataclass(frozen=True)
class BenchCheck(FileSchema):
    """A ratio of two clipping styles in files of ``dpft bench``.

    No ``command`` measures ``batch``, the largest batch, and ``speed`` at it again.
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


@dataclass(frozen=True)
class Untestable(FileSchema):
    """A part of a claim that no run of dpft can test, and why."""

    why: Annotated[Text, Field(alias="cannot")]


_KINDS = ("cells", "figure", "bench", "computed", "cannot")
Check = Annotated[
    Annotated[CellsCheck, Tag("cells")]
    | Annotated[FigureCheck, Tag("figure")]
    | Annotated[BenchCheck, Tag("bench")]
    | Annotated[ComputedCheck, Tag("computed")]
    | Annotated[Untestable, Tag("cannot")],
    Discriminator(lambda check: next((kind for kind in _KINDS if kind in check), None)),
]


@dataclass(frozen=True)
class Claim(FileSchema):
    """A headline claim: all of its checks; ``reading`` says how words like "about" are taken."""

    paper: str
    number: Annotated[str, Field(pattern=r"^c\d{2}$")]
    says: Text
    source: Text
    checks: Annotated[tuple[Check, ...], Field(min_length=1)]
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
