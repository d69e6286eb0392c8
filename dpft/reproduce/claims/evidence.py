"""What is at hand: tables of the papers filled from records, and benchmarks; each read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.claims.bench_files import BenchFile
from dpft.reproduce.claims.schema import ClaimError, Pattern
from dpft.reproduce.figures import lists
from dpft.reproduce.papers import Column, PaperError, PaperTable, Row, load
from dpft.reproduce.papers.schema import show_label
from dpft.reproduce.tables.cells import Filled, fill
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import Index
from dpft.reproduce.tables.plan import Plan, key_of, make_plan, words_at


@dataclass
class Evidence:
    """Records, benchmarks, and the tables that the records fill.

    Attributes:
        index: the records.
        benches: the benchmarks.
        composer: within its ``with``.
    """

    index: Index
    benches: Sequence[BenchFile]
    composer: Composer
    _tables: dict[tuple[str, bool], PaperTable] = field(default_factory=dict)
    _filled: dict[tuple[int, str], Filled] = field(default_factory=dict)

    def table(self, name: str, where: str, figure: bool = False) -> PaperTable:
        """The table ``li2022/2``, or the list of runs of the figure of that name.

        Raises:
            ClaimError: if there is none, or its file is malformed; names ``where``.
        """
        if (name, figure) not in self._tables:
            paper, _, number = name.partition("/")
            try:
                if figure:
                    table = lists.read_list(lists.ROOT / paper / f"{number}.yaml")
                else:
                    table = load(paper, number)
            except (ConfigError, PaperError) as error:
                raise ClaimError(f"{where}: {error}") from error
            self._tables[name, figure] = table
        return self._tables[name, figure]

    def filled(self, table: PaperTable, scale: str) -> Filled:
        """The table beside the records at a scale, which it must have."""
        key = (id(table), scale)  # a figure's list may have the name of a table
        if key not in self._filled:
            self._filled[key] = fill(self._plan(table, scale), self.index)
        return self._filled[key]

    def _plan(self, table: PaperTable, scale: str) -> Plan:
        if _tasks(table, scale) & self.index.tasks:
            return make_plan(table, self.composer, scale)
        # Nothing can be found, so that nothing need be composed: that takes seconds for all tables.
        laptop = table.laptop if scale == "laptop" else None
        return Plan(
            table=table,
            scale=scale,
            seeds=(0,),
            any_seed=True,
            columns=tuple(c for c in table.columns if laptop is None or c.at_laptop),
            rows=tuple(row for row in table.rows if laptop is None or not laptop.skips(row)),
            runs={},
            skipped=(),
            extra=(),
        )


def scales_of(table: PaperTable) -> tuple[str, ...]:
    """Those at which the table has runs."""
    return ("paper",) if table.laptop is None else ("paper", "laptop")


def matching(rows: Iterable[Row], pattern: Pattern) -> list[Row]:
    """The rows that have one of the pattern's values in each of its labels."""
    return [row for row in rows if all(row.labels[name] in pattern[name] for name in pattern)]


def check_labels(table: PaperTable, patterns: Iterable[Pattern], where: str) -> None:
    """Refuse a label or a value of one that no row has: it would silently compare nothing.

    Raises:
        ClaimError: naming it, and what is near.
    """
    for name, told in (item for pattern in patterns for item in pattern.items()):
        if name not in table.label_names:
            raise ClaimError(
                f"{where}: rows of {table.name} have no {name!r}"
                f"{suggestion(name, table.label_names)}; expected {', '.join(table.label_names)}"
            )
        known = dict.fromkeys(row.labels[name] for row in table.rows)
        for value in told:
            if value not in known:
                shown = [show_label(one) for one in known]
                raise ClaimError(
                    f"{where}: no row of {table.name} has {name} {value!r}"
                    f"{suggestion(show_label(value), shown)}; expected one of {', '.join(shown)}"
                )


def columns_of(table: PaperTable, keys: Sequence[str], where: str) -> tuple[Column, ...]:
    """The columns with these keys; all, where none is named.

    Raises:
        ClaimError: for a key that the table does not have.
    """
    known = {column.key: column for column in table.columns}
    for key in keys:
        if key not in known:
            raise ClaimError(
                f"{where}: {table.name} has no column {key!r}{suggestion(key, known)}; expected "
                f"{', '.join(known)}"
            )
    return tuple(known[key] for key in keys) if keys else table.columns


def _tasks(table: PaperTable, scale: str) -> set[str]:
    words = {
        word
        for row in table.rows
        for column in table.columns
        if table.run_of(row, scale) is not None
        for word in words_at(table, column, row, scale)
    }
    return {word.partition("=")[2] for word in words if key_of(word) == "task"}
