"""The epsilons that a paper prints, beside those of the same settings by our accountants.

They follow from the paper's settings and the published number of training records: no run and no
data are needed, and they are the same at every scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import Run, parse
from dpft.reproduce.papers.schema import PaperTable, Row
from dpft.reproduce.tables.plan import words_at

WITHIN = 0.03
NAMES = {"rdp": "eps RDP", "gdp_clt": "eps GDP-CLT", "prv": "eps PRV"}


@dataclass(frozen=True)
class EpsilonCell:
    """A printed epsilon and ours.

    Attributes:
        accountant: a key of `NAMES`.
        columns: labels of the columns whose runs it is of; none: of all of the row.
        ours: by the same accountant; PRV: its estimate; None where there is no finite number.
        why: why there is none.
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
    """The epsilon cells of each of ``rows``, from the paper's settings."""
    computed: dict[Any, dict[str, Any] | str] = {}
    return [_of_row(table, row, computed) for row in rows]


def _of_row(
    table: PaperTable, row: Row, computed: dict[Any, dict[str, Any] | str]
) -> tuple[EpsilonCell, ...]:
    cells: dict[tuple[str, float, float | None, str | None], list[str]] = {}
    # Columns that need no run of their own share the row's.
    columns = [c for c in table.columns if c.metrics and row.printed.get(c.key) is not None]
    for accountant, by_column in row.epsilons.items():
        for column in columns:
            printed = by_column.get(column.key, by_column.get(None))
            if printed is None:
                continue
            run = parse(compose(words_at(table, column, row, "paper")))
            answer = _computed(run, computed)
            value, why = (None, answer) if isinstance(answer, str) else (answer[accountant], None)
            if isinstance(value, dict):
                value = value["estimate"]
            cells.setdefault((accountant, printed, value, why), []).append(column.label)
    return tuple(
        EpsilonCell(
            accountant, () if len(labels) == len(columns) else tuple(labels), printed, ours, why
        )
        for (accountant, printed, ours, why), labels in cells.items()
    )


def _computed(run: Run, computed: dict[Any, dict[str, Any] | str]) -> dict[str, Any] | str:
    """Epsilons by accountant, or why there are none; each mechanism once."""
    from dpft.training.mechanisms import make_mechanism, published_size

    try:
        size, optim = published_size(run), run.optim
        key = (
            *(size, run.privacy, optim.epochs, optim.steps),
            *(optim.batch_size, optim.sampling_rate, optim.rate_like),
        )
        if key not in computed:
            computed[key] = make_mechanism(run, size).epsilons()
    except ConfigError as error:
        return str(error)
    return computed[key]
