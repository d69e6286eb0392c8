"""The epsilons that a paper prints, next to those of the same settings by our accountants.

They follow from the paper's settings and the published number of training records: no run and no
data are needed, and they are the same at every scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.reproduce.papers.schema import PaperTable, Row
from dpft.reproduce.tables.plan import words_at

WITHIN = 0.03
NAMES = {"rdp": "eps RDP", "gdp_clt": "eps GDP-CLT", "prv": "eps PRV"}


@dataclass(frozen=True)
class EpsilonCell:
    """A printed epsilon and ours by the same accountant (PRV: its estimate), or ``why`` none.

    ``columns`` are labels of the columns whose runs it is of; none: of all of the row.
    """

    accountant: str
    columns: tuple[str, ...]
    printed: float
    ours: float | None
    why: str | None = None

    @property
    def difference(self) -> float | None:
        """Ours less printed."""
        return None if self.ours is None else self.ours - self.printed

    @property
    def within(self) -> bool:
        """Whether it is reproduced, to `WITHIN`."""
        return self.difference is not None and abs(self.difference) <= WITHIN + 1e-9


def epsilons(table: PaperTable, rows: Sequence[Row]) -> list[tuple[EpsilonCell, ...]]:
    """Return the epsilon cells of each of ``rows``, from the paper's settings."""
    computed: dict[Any, dict[str, Any]] = {}
    return [_of_row(table, row, computed) for row in rows]


def _of_row(
    table: PaperTable, row: Row, computed: dict[Any, dict[str, Any]]
) -> tuple[EpsilonCell, ...]:
    cells: dict[tuple[str, float, float | None, str | None], list[str]] = {}
    columns = [c for c in table.columns if c.metrics and row.printed.get(c.key) is not None]
    for accountant, by_column in row.epsilons.items():
        for column in columns:
            printed = by_column.get(column.key, by_column.get(None))
            if printed is None:
                continue
            value, why = None, None
            try:
                value = _computed(words_at(table, column, row, "paper"), computed)[accountant]
            except ConfigError as error:
                why = str(error)
            if isinstance(value, dict):
                value = value["estimate"]
            cells.setdefault((accountant, printed, value, why), []).append(column.label)
    return tuple(
        EpsilonCell(
            accountant, () if len(labels) == len(columns) else tuple(labels), printed, ours, why
        )
        for (accountant, printed, ours, why), labels in cells.items()
    )


def _computed(words: Sequence[str], computed: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the epsilons of a run by accountant; each mechanism is computed once."""
    from dpft.training.mechanisms import make_mechanism, published_size

    run = parse(compose(words))
    size, optim = published_size(run), run.optim
    length = (optim.epochs, optim.steps, optim.batch_size, optim.sampling_rate, optim.rate_like)
    key = (size, run.privacy, length)
    if key not in computed:
        computed[key] = make_mechanism(run, size).epsilons()
    return computed[key]
