"""What a table's file holds, as frozen dataclasses, which `reader` has pydantic check.

Where a key of the file is no name in Python (``is``, ``from``) or says less than its field, the
field has the key as its alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
)

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
        raise ValueError("is empty; expected a text")
    return " ".join(text.split())


def _label(value: Any) -> Label:
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise ValueError(f"is {value!r}; expected a text or a number: quote it")
    return value


def in_order(ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """Two ends of a range, None where it has no bound."""
    if None not in ends and ends[0] > ends[1]:
        raise ValueError(f"is {list(ends)}; expected [low, high], the lower end first")
    return ends


def _choice(values: Mapping[str, bool]) -> PlainValidator:
    def chosen(value: Any) -> bool:
        if str(value) not in values:
            raise ValueError(f"is {value!r}; expected {' or '.join(values)}")
        return values[value]

    return PlainValidator(chosen)


Label = str | float | None
AnyLabel = Annotated[Label, PlainValidator(_label)]
Text = Annotated[str, AfterValidator(_one_line)]
Words = tuple[Text, ...]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Interval = Annotated[tuple[Number, Number], AfterValidator(in_order)]
Range = Annotated[tuple[Number | None, Number | None], AfterValidator(in_order)]
# By label the values that a row may have there; one value needs no list in the file.
Pattern = Mapping[
    str,
    Annotated[
        tuple[AnyLabel, ...],
        BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
        Field(min_length=1),
    ],
]
Labels = Annotated[Mapping[str, AnyLabel], Field(alias="is", min_length=1)]
# An epsilon of the whole row stands under no column.
Epsilons = Annotated[
    Mapping[str | None, Number],
    BeforeValidator(lambda value: value if isinstance(value, Mapping) else {None: value}),
]


def _names(value: Any) -> Any:
    return () if value is None else [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Column(FileSchema):
    """One printed metric.

    Attributes:
        key: its name in the rows of the file.
        label: its heading.
        decimals: printed digits after the point.
        metrics: its name in a record's ``scores.<split>.metrics``, or several, of which the first
            that a record has counts; none where dpft does not measure it.
        higher_is_better: False for errors and perplexities.
        split: which scores of a record.
        factor: printed = factor * record's value; 100 where records hold shares.
        run: overrides that only this column's runs need.
        unit: for the heading.
        at_laptop: whether it is there at that scale.
    """

    key: str
    label: Text
    decimals: Annotated[int, Strict(), Field(ge=0)]
    metrics: Annotated[Words, BeforeValidator(_names), Field(alias="metric")]
    higher_is_better: Annotated[
        bool, _choice({"higher": True, "lower": False}), Field(alias="better")
    ]
    split: Text
    factor: Number = 1.0
    run: Words = ()
    unit: Text | None = None
    at_laptop: Annotated[bool, _choice({"skip": False}), Field(alias="laptop")] = True


@dataclass(frozen=True)
class Row(FileSchema):
    """One printed row.

    Attributes:
        labels: what tells it from the others, such as ``{"model": "GPT-2", "epsilon": 3}``.
        printed: by column; None is a printed dash.
        run: overrides at the paper's scale; None where dpft does not run it.
        std: printed standard deviations, by column.
        ci95: printed 95% intervals, by column.
        unexplained: what is printed behind a plus-minus sign where the paper does not say what it
            is, by column; shown, and never reckoned with.
        epsilons: printed epsilons by accountant, each by column; the column is None where one
            number stands for the whole row.
        taken_from: whose number it is, where the paper took it from elsewhere.
        why: why dpft cannot run it.
        marks: remarks on the row.
    """

    labels: Labels
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
            raise ValueError(
                "has none of run, from and why; expected the overrides of its run, whose number "
                "it is, or why dpft cannot run it"
            )
        if self.run is None and self.epsilons:
            raise ValueError("has epsilons and no run; they are computed from its settings")

    @property
    def name(self) -> str:
        """Its labels in one line: ``GPT-2, full, 3``."""
        return ", ".join(map(show_label, self.labels.values()))

    def matches(self, pattern: Pattern) -> bool:
        """Whether each of these labels has one of its values here."""
        return all(self.labels.get(name) in values for name, values in pattern.items())


@dataclass(frozen=True)
class Laptop(FileSchema):
    """The same table on small models and subsets.

    Attributes:
        setting: in place of the table's.
        says: what stands in for what, shown with every table.
        swap: words of rows and columns, and what stands in for each.
        skip: rows that match one of these are left out.
    """

    setting: Words
    says: Text
    swap: Mapping[str, Words] = field(default_factory=dict)
    skip: tuple[Pattern, ...] = ()

    def skips(self, row: Row) -> bool:
        """Whether a row is left out at this scale."""
        return any(map(row.matches, self.skip))


@dataclass(frozen=True)
class PaperTable(FileSchema):
    """A printed table. ``docs/how-to/tables.md`` explains each field.

    Attributes:
        unequal: why some of its printed epsilons do not follow from its settings.
    """

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
        """As it is typed: ``li2022/2``."""
        return f"{self.paper}/{self.number}"

    @property
    def label_names(self) -> tuple[str, ...]:
        """The keys of every row's labels."""
        return tuple(self.rows[0].labels)

    @property
    def scales(self) -> tuple[str, ...]:
        """Those at which it has runs."""
        return ("paper",) if self.laptop is None else ("paper", "laptop")

    def at(self, scale: str) -> Self:
        """With the rows and columns of one of its scales alone."""
        laptop = self.laptop
        if laptop is None or scale == "paper":
            return self
        rows = tuple(row for row in self.rows if not laptop.skips(row))
        return replace(self, rows=rows, columns=tuple(c for c in self.columns if c.at_laptop))


def show_label(value: Label) -> str:
    """A label as it is printed: ``3`` for 3.0, a dash for what does not apply."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:g}"
