"""The runs that a table lacks, as commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.reproduce.tables.cells import chosen
from dpft.reproduce.tables.plan import PlannedRun, TablePlan
from dpft.reproduce.tables.record_index import Index


@dataclass(frozen=True)
class Missing:
    """A run that has no record with the scores that a cell wants."""

    planned: PlannedRun
    seed: int

    @property
    def line(self) -> str:
        """For a list of `dpft sweep`."""
        return shlex.join(self.planned.overrides(self.seed))

    @property
    def command(self) -> str:
        """For a shell."""
        return f"dpft train {self.line}"


def missing(plan: TablePlan, index: Index) -> list[Missing]:
    """What lacks, each run and seed once, in the order of the rows.

    Where any seed counts, as many are named as are still wanted. A run that is finished and lacks a
    metric all the same is not named: to train it again would not help (`dpft score` may).
    """
    # By words: a run may be planned twice, with and without the mark of an override.
    lacking: dict[tuple[tuple[str, ...], int], PlannedRun] = {}
    for (_, j), planned in plan.runs.items():
        column = plan.columns[j]
        have = set(chosen(planned, plan, index, column))
        have |= {f.seed for f in index.of(planned.key) if f.has_scores(column.split)}
        if not plan.any_seed:
            have &= set(plan.seeds)
        still = [seed for seed in plan.seeds if seed not in have]
        for seed in still[: max(0, len(plan.seeds) - len(have))]:
            lacking.setdefault((planned.words, seed), planned)
    order = {planned.words: place for place, planned in enumerate(plan.distinct)}
    runs = [Missing(planned, seed) for (_, seed), planned in lacking.items()]
    return sorted(runs, key=lambda one: (order[one.planned.words], one.seed))


def sweep_list(lacking: Sequence[Missing]) -> str:
    """The runs as lines of a file for ``dpft sweep --list``."""
    return "".join(f"{one.line}\n" for one in lacking)
