"""When layer rules are checked against autograd: on a kind's first batch, then ever more rarely.

What a model does may depend on its data and change with its weights: one check is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call
from dpft.privacy.clipping.checks.verify import Verified

# A kind that was found right is looked at again after so many batches, and four times as many.
_AGAIN = 64

# The sequence of layer calls (which are roots, which compiled), and whether several records were in
# the batch, with several rows each: only then can they be confused.
Kind = tuple[tuple[tuple[str, bool, bool], ...], bool, bool]


@dataclass
class _Seen:
    batches: int = 0
    next_check: int = 1


class Schedule:
    """Counts batches by kind.

    Attributes:
        batches: of all kinds together.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._seen: dict[Kind, _Seen] = {}
        self._now = _Seen()
        self._hooks: tuple[int, ...] = ()
        self._rows: set[int] = set()
        self._ahead: tuple[Kind, Verified] | None = None

    @property
    def soon(self) -> bool:
        """Whether the next batch is one to check, if it is of the last one's kind."""
        return self._now.batches + 1 >= self._now.next_check

    def check_ahead(
        self, losses: Tensor, calls: Sequence[Call], rows: int, verified: Verified
    ) -> None:
        """Note what some records of the next batch have shown, by themselves."""
        self._ahead = _kind(losses, calls, rows), verified

    def ahead(self, losses: Tensor, calls: Sequence[Call], rows: int) -> Verified | None:
        """What some records of this batch have shown; None where the batch is of another kind."""
        found, self._ahead = self._ahead, None
        return found[1] if found is not None and found[0] == _kind(losses, calls, rows) else None

    def due(
        self, losses: Tensor, calls: Sequence[Call], rows: int, hooks: tuple[int, ...] = ()
    ) -> bool:
        """Count a batch; whether it is one to check.

        Where no loss is finite there is nothing to compare, and the next batch is looked at: for
        ever, if need be, since which records are finite may not end a run. Where the model got or
        lost hooks since the last batch, every kind is looked at again.
        """
        if hooks != self._hooks:
            self._hooks = hooks
            self._seen.clear()
        self._now = seen = self._seen.setdefault(_kind(losses, calls, rows), _Seen())
        seen.batches += 1
        self.batches += 1
        return seen.batches >= seen.next_check and bool(torch.isfinite(losses).any())

    def may_be_due(self, rows: int, hooks: tuple[int, ...]) -> bool:
        """Whether `due` may say so of the next batch, before its forward.

        Args:
            rows: of the model's batch. The first batch of a size may be of a new kind.
            hooks: as of `due`.
        """
        new = rows not in self._rows
        self._rows.add(rows)
        soon = any(seen.batches + 1 >= seen.next_check for seen in self._seen.values())
        return new or soon or hooks != self._hooks

    def checked(self, all_conclusive: bool, all_finite: bool) -> None:
        """Set when to look again: soon, as long as small gradients leave something unproven.

        Some always do: attention's softmax takes no notice of a bias of the keys. Where a gradient
        was not finite, the next batches are looked at, and later ones ever more rarely.
        """
        n = self._now.batches
        if all_finite or n - self._now.next_check >= _AGAIN:
            proven = all_conclusive and all_finite
            self._now.next_check = max(_AGAIN, 4 * n) if proven else 2 * n


def _kind(losses: Tensor, calls: Sequence[Call], rows: int) -> Kind:
    names = tuple((call.site.name, call.root, call.compiled) for call in calls)
    return names, len(losses) > 1, rows > 1
