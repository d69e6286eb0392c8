"""What a table's file holds, as frozen dataclasses, and where the files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpft.config.errors import DataError

# In the order of their publication.
PAPERS = ("li2022", "he2022", "bu2023")
ACCOUNTANTS = ("rdp", "gdp_clt", "prv")

Label = str | float | None
Words = tuple[str, ...]


class PaperError(DataError):
    """A table's file is malformed; the message names the file, the place and what belongs there."""


@dataclass(frozen=True)
class Column:
    """One printed metric.

    Attributes:
        key: its name in the rows of the file.
        label: its heading.
        decimals: printed digits after the point.
        metrics: its name in a record's ``scores.<split>.metrics``, or several, of which the first
            that a record has counts; none where dpft does not measure it.
        factor: printed = factor * record's value; 100 where records hold shares.
        higher_is_better: False for errors and perplexities.
        split: which scores of a record.
        run: overrides that only this column's runs need.
        unit: for the heading.
        at_laptop: whether it is there at that scale.
    """

    key: str
    label: str
    decimals: int
    metrics: Words
    factor: float
    higher_is_better: bool
    split: str
    run: Words = ()
    unit: str | None = None
    at_laptop: bool = True


@dataclass(frozen=True)
class Row:
    """One printed row.

    Attributes:
        labels: what tells it from the others, such as ``{"model": "GPT-2", "epsilon": 3}``.
        run: overrides at the paper's scale; None where dpft does not run it.
        printed: by column; None is a printed dash.
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

    labels: Mapping[str, Label]
    run: Words | None
    printed: Mapping[str, float | None]
    std: Mapping[str, float]
    ci95: Mapping[str, tuple[float, float]]
    epsilons: Mapping[str, Mapping[str | None, float]]
    taken_from: str | None = None
    why: str | None = None
    marks: Words = ()
    unexplained: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its labels in one line: ``GPT-2, full, 3``."""
        return ", ".join(show_label(value) for value in self.labels.values())

    def has(self, labels: Mapping[str, Label]) -> bool:
        """Whether these are among its labels."""
        return self.labels.items() >= labels.items()


@dataclass(frozen=True)
class Laptop:
    """The same table on small models and subsets.

    Attributes:
        setting: in place of the table's.
        swap: words of rows and columns, and what stands in for each.
        skip: rows whose labels hold one of these are left out.
        runs: what rows with these labels run, though they have no run at the paper's scale. Their
            numbers were taken from elsewhere, and would have nothing to be compared with here.
        says: what stands in for what, shown with every table.
    """

    setting: Words
    swap: Mapping[str, Words]
    skip: tuple[Mapping[str, Label], ...]
    says: str
    runs: tuple[tuple[Mapping[str, Label], Words], ...] = ()

    def skips(self, row: Row) -> bool:
        """Whether a row is left out at this scale."""
        return any(map(row.has, self.skip))


@dataclass(frozen=True)
class PaperTable:
    """A printed table. ``docs/tables.md`` explains each field as a file's author needs it."""

    paper: str
    number: str
    title: str
    source: str
    seeds: int | None
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    setting: Words
    unknown: Words
    choices: tuple[str, ...]
    laptop: Laptop | None
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """As it is typed: ``li2022/2``."""
        return f"{self.paper}/{self.number}"

    def run_of(self, row: Row, scale: str) -> Words | None:
        """The overrides of a row's run at a scale; None where dpft does not run it."""
        if row.run is None and scale == "laptop" and self.laptop is not None:
            for labels, words in self.laptop.runs:
                if row.has(labels):
                    return words
        return row.run

    @property
    def label_names(self) -> tuple[str, ...]:
        """The keys of every row's labels."""
        return tuple(self.rows[0].labels)


def show_label(value: Label) -> str:
    """A label as it is printed: ``3`` for 3.0, a dash for what does not apply."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:g}"
