"""What a file of claims holds, as frozen dataclasses that pydantic checks, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Strict, Tag, TypeAdapter

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.claims.computed import FUNCTIONS
from dpft.reproduce.papers.reader import strict_yaml, validated
from dpft.reproduce.papers.schema import (
    PAPERS,
    FileSchema,
    Number,
    Pattern,
    Range,
    Text,
    Words,
    in_order,
)

ROOT = Path(__file__).resolve().parent / "data"
_RANGES = ("apart", "ratio", "value")
_ALIKE = ("not_below", "on_par")

Flag = Annotated[bool, Strict()]


@dataclass(frozen=True)
class Expected(FileSchema):
    """What the first of two numbers must be to the second.

    Attributes:
        kind: ``above`` (better by more than the margin), ``not_below`` (not worse by more),
            ``on_par`` (no further apart), ``best`` (the best of the first rows against the best of
            all others, as ``above``), ``apart`` (better by an amount in the range), ``ratio``
            (first / second in the range), ``value`` (the first is this number; there is no second).
        low: of the range; None: no bound. The number of ``value``.
        high: of the range.
        equivalence: of ``not_below`` and ``on_par``, how far apart two means over seeds of ours may
            be and still count as good as each other, in per cent of the second.
    """

    kind: Literal["above", "not_below", "on_par", "best", "apart", "ratio", "value"]
    low: Number | None = None
    high: Number | None = None
    equivalence: Annotated[Number, Field(gt=0)] | None = None

    @property
    def alike(self) -> bool:
        """Whether it asks for no difference that matters."""
        return self.kind in _ALIKE

    def __post_init__(self) -> None:
        """Refuse a range where none belongs, or none where one does."""
        in_order((self.low, self.high))
        if (self.kind in _RANGES) == (self.low is self.high is None):
            raise ValueError(
                f"is {self.kind}; expected numbers for {', '.join(_RANGES)}, as in "
                "{apart: [3, 5]}, and for no others"
            )


def _unfolded(value: Any) -> Any:
    """``above``, ``{on_par: 2}`` and ``{apart: [3, 5]}`` as the fields of `Expected`."""
    if not (isinstance(value, Mapping) and len(value) == 1):
        return {"kind": value}
    ((kind, ends),) = value.items()
    if kind in _ALIKE:
        return {"kind": kind, "equivalence": ends}
    low, high = ends if isinstance(ends, list) and len(ends) == 2 else (ends, ends)
    return {"kind": kind, "low": low, "high": high}


@dataclass(frozen=True)
class CellsCheck(FileSchema):
    """Rows of a table against other rows of it, column by column.

    ``docs/how-to/claims.md`` explains each field. With variants each row that
    ``where`` allows is replaced by one for every variant, which has these overrides beside its own
    and the label ``variant``.
    """

    table: Annotated[Text, Field(alias="cells")]
    expected: Annotated[Expected, BeforeValidator(_unfolded), Field(alias="expect")]
    first: Pattern
    second: Pattern = field(default_factory=dict)
    where: Pattern = field(default_factory=dict)
    free: Words = ()
    columns: Words = ()
    printed: Flag = True
    ours: Flag = True
    variants: Mapping[str, Words] = field(default_factory=dict)
    scales: tuple[Literal["paper", "laptop"], ...] = ("paper", "laptop")

    def __post_init__(self) -> None:
        """Refuse a check that does not say what is compared."""
        alone = self.expected.kind in ("best", "value")
        if alone and self.second:
            raise ValueError(
                f"expects {self.expected.kind} and has a second; that is compared with nothing: "
                "leave it out"
            )
        if not alone and not self.second:
            raise ValueError(
                f"expects {self.expected.kind} and has no second; expected the labels of what the "
                "first is compared with"
            )
        if not (self.printed or (self.ours and self.scales)):
            raise ValueError("compares neither printed numbers nor ours; expected one")


@dataclass(frozen=True)
class FigureCheck(CellsCheck):
    """The same in a figure's own list of runs, which prints no numbers."""

    table: Annotated[Text, Field(alias="figure")]
    printed: Flag = False


@dataclass(frozen=True)
class BenchCheck(FileSchema):
    """A ratio of two clipping styles out of ``dpft bench``, see ``docs/how-to/claims.md``."""

    quantity: Annotated[Literal["time", "memory", "batch", "speed"], Field(alias="bench")]
    first: Words
    second: Words
    ratio: Range
    models: Words
    command: Text
    tokens: Annotated[int, Strict(), Field(ge=1)] | None = None


def _known(name: str) -> str:
    if name not in FUNCTIONS:
        raise ValueError(
            f"is {name!r}{suggestion(name, FUNCTIONS)}; expected {', '.join(FUNCTIONS)}"
        )
    return name


@dataclass(frozen=True)
class ComputedCheck(FileSchema):
    """A number that follows without a run and must lie in a range.

    Attributes:
        function: of `dpft.reproduce.claims.computed`.
        what: what the number is, with the function's arguments and results in braces.
        of: arguments, one mapping for each call; of a list each value is taken, with each value of
            the other lists.
        shows: the number in words, with the same in braces.
    """

    function: Annotated[str, AfterValidator(_known), Field(alias="computed")]
    what: Text
    within: Range
    of: tuple[Mapping[str, Any], ...] = ({},)
    shows: Text = "{value:.6g}"


@dataclass(frozen=True)
class Untestable(FileSchema):
    """What no run of dpft can tell, and why."""

    why: Annotated[Text, Field(alias="cannot")]


_KINDS = ("cells", "figure", "bench", "computed", "cannot")
Check = Annotated[
    Annotated[CellsCheck, Tag("cells")]
    | Annotated[FigureCheck, Tag("figure")]
    | Annotated[BenchCheck, Tag("bench")]
    | Annotated[ComputedCheck, Tag("computed")]
    | Annotated[Untestable, Tag("cannot")],
    Discriminator(
        lambda check: next((kind for kind in _KINDS if kind in check), None),
        custom_error_type="kind",
        custom_error_message=f"expected a check with one of the keys {', '.join(_KINDS)}",
    ),
]


@dataclass(frozen=True)
class Claim(FileSchema):
    """A headline claim.

    Attributes:
        paper: ``li2022``.
        number: ``c05``.
        says: the claim, in our own words.
        source: where the paper makes it.
        checks: what would bear it out; all of them together are the claim.
        reading: how words without a number ("comparable", "about") are taken, and what is known.
    """

    paper: str
    number: Annotated[str, Field(pattern=r"^c\d{2}$")]
    says: Text
    source: Text
    checks: Annotated[tuple[Check, ...], Field(min_length=1)]
    reading: Text | None = None

    @property
    def name(self) -> str:
        """As it is typed: ``li2022/c05``."""
        return f"{self.paper}/{self.number}"


_CLAIMS = TypeAdapter(Annotated[dict[str, Claim], Field(min_length=1)])


def read(path: Path) -> list[Claim]:
    """The claims in a file, in its order; its name is the paper's.

    Raises:
        PaperError: for the first place that does not follow the schema.
    """
    content: Any = strict_yaml(path)
    if isinstance(content, Mapping):
        content = {
            number: one | {"paper": path.stem, "number": number} if isinstance(one, dict) else one
            for number, one in content.items()
        }
    return list(validated(_CLAIMS, content, path).values())


def load(name: str | None = None) -> list[Claim]:
    """Every claim, those of a paper (``li2022``), or one (``li2022/c05``).

    Raises:
        ConfigError: if there is none of that name.
        PaperError: for a malformed file.
    """
    paper, slash, _ = (name or "").partition("/")
    if name is not None and paper not in PAPERS:
        raise ConfigError(
            f"there are no claims of {paper!r}{suggestion(paper, PAPERS)}; expected one of "
            f"{', '.join(PAPERS)}: type dpft claims for all"
        )
    claims = [one for each in PAPERS if paper in ("", each) for one in read(ROOT / f"{each}.yaml")]
    if not slash:
        return claims
    known = {claim.name: claim for claim in claims}
    if name not in known:
        raise ConfigError(
            f"there is no claim {name!r}{suggestion(str(name), known)}; expected "
            f"{claims[0].name} to {claims[-1].name}: type dpft claims {paper} for a list"
        )
    return [known[name]]
