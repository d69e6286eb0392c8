"""Whether training went anywhere, by the noiseless losses of its steps: for their owner alone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

_RISE = 1.1  # less may be chance


class Course:
    """Losses and dropped records of the steps of one session, in order."""

    def __init__(self) -> None:
        self._losses: list[float | None] = []
        self._seen: list[tuple[int, int]] = []

    def add(self, summary: Mapping[str, Any]) -> None:
        """Take up a step, see `dpft.training.loop.StepStatistics.summary`."""
        self._losses.append(summary["loss"])
        self._seen.append((summary["records"], summary["dropped"]))

    def caution(self) -> str | None:
        """What is wrong with the steps, with what to type; None: nothing that shows."""
        if not self._seen:
            return None
        tenth = max(1, len(self._seen) // 10)
        records, dropped = (sum(numbers) for numbers in zip(*self._seen[-tenth:], strict=True))
        if records and dropped == records:
            return (
                f"none of the {records:,} records of the last {tenth} steps had a finite loss and "
                "gradient, so nothing was learned from them; type a smaller optim.lr"
            )
        first, last = (
            [loss for loss in losses if loss is not None]
            for losses in (self._losses[:tenth], self._losses[-tenth:])
        )
        if len(self._seen) > 1 and first and last and fmean(last) > _RISE * fmean(first):
            return (
                f"the mean loss rose from {fmean(first):.3f} to {fmean(last):.3f}; type a smaller "
                "optim.lr"
            )
        return None
