"""The content of a table's file; ``docs/how-to/tables.md`` explains each key."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict

from dpft.config.errors import DataError

# In the order of their publication.
PAPERS = ("li2022", "he2022", "bu2023")


class PaperError(DataError):
    """A file of data is malformed; the message names the file, the place and what belongs there."""


class FileSchema:
    """A mapping of a file, in which an unknown key is an error."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


def _one_line(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a text")
    return " ".join(text.split())


def in_order(ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the two ends of a range, None being no bound; refuse the higher end first."""
    if None not in ends and ends[0] > ends[1]:
        raise ValueError(f"got {list(ends)}, expected [low, high], the lower end first")
    return ends


def _one_of(values: Mapping[str, bool]) -> BeforeValidator:
    return BeforeValidator(lambda value: values.get(str(value), value))


# `yes` is a truth value in YAML: strict types refuse it, so that it is quoted.
Label = Annotated[str, Strict()] | Annotated[float, Strict()] | None
Text = Annotated[str, AfterValidator(_one_line)]
Words = tuple[Text, ...]
Flag = Annotated[bool, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Interval = Annotated[tuple[Number, Number], AfterValidator(in_order)]
Range = Annotated[tuple[Number | None, Number | None], AfterValidator(in_order)]
# The values that a row may have, by label; one value needs no list in the file.
Pattern = Mapping[
    str,
    Annotated[
        tuple[Label, ...],
        BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
        Field(min_length=1),
    ],
]
# An epsilon of the whole row has no column.
Epsilons = Annotated[
    Mapping[str | None, Number],
    BeforeValidator(lambda value: value if isinstance(value, Mapping) else {None: value}),
]


def _names(value: Any) -> Any:
    return () if value is None else [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Column(FileSchema):
    """One printed metric: ``factor`` times the first of ``metrics`` that a record has.

    Without ``metrics`` dpft does not measure it. Only its own runs need the overrides ``run``.
    """

    key: str
    label: Text
    decimals: Annotated[int, Strict(), Field(ge=0)]
    metrics: Annotated[Words, BeforeValidator(_names), Field(alias="metric")]
    higher_is_better: Annotated[
        Flag, _one_of({"higher": True, "lower": False}), Field(alias="better")
    ]
    split: Text
    factor: Number = 1.0
    run: Words = ()
    unit: Text | None = None
    at_laptop: Annotated[Flag, _one_of({"skip": False}), Field(alias="laptop")] = True


@dataclass(frozen=True)
class Row(FileSchema):
    """One printed row; ``labels`` distinguish it, numbers are by column.

    In ``printed`` None is a dash. ``run`` are overrides at the paper's scale, None where dpft does
    not run it, because of ``why``. What is ``unexplained`` was printed after a plus-minus sign that
    the paper does not explain; it is shown and enters no computation. ``epsilons`` are by
    accountant, then by column: None where one number is of the whole row. The paper took the row
    from ``taken_from``; ``marks`` are remarks.
    """

    labels: Annotated[Mapping[str, Label], Field(alias="is", min_length=1)]
    printed: Mapping[str, Number | None]
    run: Words | None = None
    std: Mapping[str, Number] = field(default_factory=dict)
    ci95: Mapping[str, Interval] = field(default_factory=dict)
    unexplained: Mapping[str, Number] = field(default_factory=dict)
    epsilons: Mapping[Literal["rdp", "gdp_clt", "prv"], Epsilons] = field(default_factory=dict)
    taken_from: Annotated[Text | None, Field(alias="from")] = None
    why: Text | None = None
    marks: Words = ()

    def __post_init__(self) -> None:
        """Refuse a row without a run that gives no reason for it."""
        if self.run is None and self.taken_from is None and self.why is None:
            raise ValueError("got none of run, from and why, expected one of them")
        if self.run is None and self.epsilons:
            raise ValueError("got epsilons without a run, whose settings they are computed from")

    @property
    def name(self) -> str:
        """Its labels in one line: ``GPT-2, full, 3``."""
        return ", ".join(map(show_label, self.labels.values()))

    def matches(self, pattern: Pattern) -> bool:
        """Return whether it has one of the pattern's values for each of the pattern's labels."""
        return all(self.labels.get(name) in values for name, values in pattern.items())


@dataclass(frozen=True)
class Laptop(FileSchema):
    """The same table on small models and subsets, which ``says`` names.

    ``setting`` replaces the table's, ``swap`` single overrides of rows and columns. Rows that match
    one of ``skip`` are left out.
    """

    setting: Words
    says: Text
    swap: Mapping[str, Words] = field(default_factory=dict)
    skip: tuple[Pattern, ...] = ()


@dataclass(frozen=True)
class PaperTable(FileSchema):
    """A printed table; ``unequal`` says why some printed epsilons do not follow from it."""

    paper: str
    number: str
    title: Text
    source: Text
    seeds: Annotated[int, Strict(), Field(ge=1)] | None
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    setting: Words = ()
    unknown: Words = ()
    choices: Words = ()
    laptop: Laptop | None = None
    unequal: Text | None = None
    notes: Words = ()

    @property
    def name(self) -> str:
        """The table as it is typed: ``li2022/2``."""
        return f"{self.paper}/{self.number}"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The keys of every row's labels."""
        return tuple(self.rows[0].labels)

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales at which it has runs."""
        return ("paper",) if self.laptop is None else ("paper", "laptop")

    def at(self, scale: str) -> Self:
        """Return the table with the rows and columns of one of its scales alone."""
        laptop = self.laptop
        if laptop is None or scale != "laptop":
            return self
        rows = tuple(row for row in self.rows if not any(map(row.matches, laptop.skip)))
        return replace(self, rows=rows, columns=tuple(c for c in self.columns if c.at_laptop))


def show_label(value: Label) -> str:
    """Return a label as it is printed: ``3`` for 3.0, a dash for None."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:g}"
