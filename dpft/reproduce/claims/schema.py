"""What a file of claims holds, as frozen dataclasses, and where the files lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpft.config.errors import DataError
from dpft.reproduce.papers.schema import Label, Words

ORDERS = ("above", "not_below", "on_par", "best")
RANGES = ("apart", "ratio", "value")
QUANTITIES = ("time", "memory", "batch", "speed")

Pattern = Mapping[str, tuple[Label, ...]]


class ClaimError(DataError):
    """A file of claims is malformed, or names what no table has; the message says where."""


@dataclass(frozen=True)
class Expected:
    """What the first of two numbers must be to the second.

    Attributes:
        kind: ``above`` (better by more than the margin), ``not_below`` (not worse by more),
            ``on_par`` (no further apart), ``best`` (the best of the first rows against the best of
            all others, as ``above``), ``apart`` (better by an amount in the range), ``ratio``
            (first / second in the range), ``value`` (the first is this number; there is no second).
        low: of the range; None: no bound. The number of ``value``.
        high: of the range.
    """

    kind: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CellsCheck:
    """Rows of a table against other rows of it, column by column.

    Attributes:
        table: ``li2022/2``.
        figure: whether that is a figure's own list of runs, which prints no numbers.
        expected: of the first to the second.
        first: labels of the rows in question; a label may have several values.
        second: of what they are compared with. Rows are paired that agree in every label which
            neither pattern names; without it (``best``, ``value``) there are no pairs.
        where: labels that both have.
        free: labels in which a pair may differ although no pattern names them.
        columns: keys; none: all of the table.
        printed: whether the printed numbers are compared.
        ours: whether ours are.
    """

    table: str
    figure: bool
    expected: Expected
    first: Pattern
    second: Pattern
    where: Pattern
    free: Words
    columns: Words
    printed: bool = True
    ours: bool = True


@dataclass(frozen=True)
class VariantsCheck:
    """Runs that are no cells: a row of a table with other overrides, compared in pairs.

    Attributes:
        table: whose settings, columns and scales hold.
        row: labels of the one row that the runs vary.
        column: whose score is compared.
        expected: of the first of a pair to the second.
        variants: overrides beside the row's, by a name of our own.
        pairs: of names.
        scales: at which it makes sense.
    """

    table: str
    row: Pattern
    column: str
    expected: Expected
    variants: Mapping[str, Words]
    pairs: tuple[tuple[str, str], ...]
    scales: Words


@dataclass(frozen=True)
class BenchCheck:
    """A ratio of two clipping styles out of ``dpft bench``.

    Attributes:
        quantity: ``time`` of a step, peak ``memory``, largest ``batch``, or ``speed`` in records
            per second at the largest batch.
        first: styles or peers, each compared with each ``second`` that the same file has.
        second: ``none`` is training without privacy.
        low: of the ratio first / second; None: no bound.
        high: of the same.
        models: names of `dpft.reproduce.bench.catalog`.
        longest_at_least: only files with as many tokens a record.
        command: what measures it.
    """

    quantity: str
    first: Words
    second: Words
    low: float | None
    high: float | None
    models: Words
    longest_at_least: int | None
    command: str


@dataclass(frozen=True)
class ComputedCheck:
    """Something that follows without a run: a function of `dpft.reproduce.claims.computed`."""

    function: str


@dataclass(frozen=True)
class Untestable:
    """What no run of dpft can tell, and why."""

    why: str


Check = CellsCheck | VariantsCheck | BenchCheck | ComputedCheck | Untestable


@dataclass(frozen=True)
class Claim:
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
    number: str
    says: str
    source: str
    checks: tuple[Check, ...]
    reading: str | None = None

    @property
    def name(self) -> str:
        """As it is typed: ``li2022/c05``."""
        return f"{self.paper}/{self.number}"
