"""One batch on its way through a plan: what all plans have in common.

Layers report their input and output gradient ``(a, g)`` in the order of the backward. A parameter
is *complete* when all its uses have arrived: its norm is taken then, over all uses together, so
that tied weights count once. A group is complete when all its parameters are: its clip factors can
be computed then, and with them its sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.calls import Call, uses_of
from dpft.privacy.clipping.capture import Capture, Gate, Listener
from dpft.privacy.clipping.checks.guard import Guard
from dpft.privacy.clipping.checks.structure import Structure
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.plans.norms import recomputed, total
from dpft.privacy.clipping.rules import (
    GramCache,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
    joint_squared_norm,
)
from dpft.privacy.cohort import Cohort
from dpft.privacy.precision import full_precision

# Numbers of sharded parameters' sums that are formed before they are scattered: enough to hide the
# latency of a collective, fewer than a layer of a model that needs sharding has.
_AT_ONCE = 1 << 23


class Entry(NamedTuple):
    """What is kept of a complete parameter: its norms, and what its sum will be formed from."""

    squared_norm: SquaredNorm
    uses: list[Use]


Book = dict[str, Entry]
"""The complete parameters, by name."""


class LostRecordError(RuntimeError):
    """A record that has to be dropped is in sums already: its loss or gradient is not finite.

    The sums are worth nothing, and nothing was released: they are formed again, by a batch that is
    `careful`.
    """

    def __init__(self) -> None:
        super().__init__(
            "the loss or the gradient of a record is not finite, which was seen when sums had been "
            "formed; expected finite numbers. Set .grad to None, call clipper.reset() and begin "
            "the logical batch again: from then on such a record is dropped before its group is "
            "summed, at the cost of one wait of the host for each group"
        )


class Factors(NamedTuple):
    """Clip factors of one group.

    Attributes:
        values: ``(B,)``; 0 for records that are dropped.
        dropped: records whose loss, or gradient in the group, is not finite, bool ``(B,)``; None:
            there is none.
    """

    values: Tensor
    dropped: Tensor | None


class ClippingBatch:
    """What a plan works on, and what it leaves.

    Args:
        capture: of the layers' calls.
        guard: over ``.grad``.
        structure: of the graph of ``losses``.
        losses: per-example losses, ``(B,)``.
        rows: rows of the model's batch for each loss, next to each other.
        groups: the clipping groups.
        parameters: the trainable parameters, whose ``.grad`` receives the sums.
        clip: clip factors ``(B,)`` of group ``k`` from its norms ``(B,)``.
        cohort: where parameters are sharded, who is given the sums.
        arrived: calls with their output gradients, where a backward was already; None: `backward`
            is one.
        careful: whether the host may look at the numbers of each group as it completes. Otherwise
            it reads once, at the end: see `LostRecordError`.

    Attributes:
        size: ``B``.
        group_of: the index of a parameter's group.
        forms: how each parameter's norms were computed, in words.
        dropped: whether a record was found that has to be dropped.
    """

    def __init__(
        self,
        capture: Capture,
        guard: Guard,
        structure: Structure,
        losses: Tensor,
        rows: int,
        groups: Sequence[Group],
        parameters: Mapping[str, nn.Parameter],
        clip: Callable[[int, Tensor], Tensor],
        cohort: Cohort | None = None,
        arrived: Sequence[tuple[Call, Tensor]] | None = None,
        careful: bool = True,
    ) -> None:
        self.capture = capture
        self.guard = guard
        self.structure = structure
        self.losses = losses
        self.rows = rows
        self.groups = groups
        self.parameters = parameters
        self.size = len(losses)
        self.group_of = {name: k for k, group in enumerate(groups) for name in group.parameters}
        self.forms: dict[str, str] = {}
        self.careful = careful
        self._clip = clip
        self._arrived = arrived
        self._cohort = cohort if cohort is not None and cohort.sharded else None
        self._finite = torch.isfinite(losses.detach())
        self._grams = GramCache()
        self._norms: dict[int, Tensor] = {}
        self._factors: dict[int, Tensor] = {}
        self.dropped = False
        self._formed: list[tuple[nn.Parameter, Tensor]] = []
        self._expected: list[tuple[Tensor, Exception]] = []
        self._unread = False  # whether sums rest on norms of which none was looked at

    def backward(
        self,
        complete: Callable[[str, list[Use]], None],
        *,
        gate: Gate | None = None,
        keep_graph: bool = False,
        observe: Listener | None = None,
    ) -> None:
        """One backward towards the layers' outputs, which forms no weight gradient.

        Args:
            complete: called with a parameter's name and all its uses, as soon as the last arrived.
            gate: where the backward starts; at the losses by default.
            keep_graph: whether another backward is to come: graph and layers' inputs are kept.
            observe: called with each call, whose inputs are at hand, and its output gradient before
                that.

        Raises:
            UnsupportedLayerError: if a call that the losses depend on was not reached.
        """
        calls = self.structure.reached
        outstanding = Counter(name for call in calls for name in call.site.names.values())
        uses: dict[str, list[Use]] = {}
        received = 0

        @torch.no_grad()
        @full_precision()
        def receive(call: Call, g: Tensor) -> None:
            nonlocal received
            received += 1
            call.hold()
            if observe is not None:
                observe(call, g)
            added = uses_of(call, g, self.size, self.rows)
            if keep_graph:
                call.let_go()
            else:
                call.release()
            for name, use in added:
                uses.setdefault(name, []).append(use)
            for name in call.site.names.values():
                outstanding[name] -= 1
                if not outstanding[name]:
                    complete(name, uses.pop(name))

        if self._arrived is not None:
            for call, g in self._arrived:
                receive(call, g)
        else:
            self.capture.backward(
                self.losses,
                calls,
                receive,
                other_leaves=self.structure.other_leaves,
                retain_graph=keep_graph,
                gate=gate,
            )
        self._grams = GramCache()
        if received != len(calls):
            raise UnsupportedLayerError(
                f"{len(calls)} layer calls lie on the way to the losses, but a backward reached "
                f"{received} of them; expected all: does a layer give several outputs of which the "
                "first is unused?"
            )

    def squared_norm(self, name: str, uses: Sequence[Use]) -> SquaredNorm:
        """``|G_i|^2`` of one parameter, ``(B,)``, without forming ``G_i`` where that is dearer."""
        self.forms[name] = " + ".join([use.form() for use in uses])
        return joint_squared_norm(uses, self._grams)

    def clip_factors(self, k: int, book: Book) -> Factors:
        """Clip factors of group ``k`` from the norms of its parameters, which are all complete.

        Guarantee: times its factor no record's gradient in the group is longer than ``C_k``.
        """
        if self.careful:
            return self.factors_of(k, *self.squared_group_norm(k, book))
        entries = self._entries(k, book)
        squared = total([entry.squared_norm for entry in entries]) if entries else self._no_norms()
        self._unread = True
        # Who is dropped has NaN in the sums, which are then given up; nobody else's factor is one.
        return self.factors_of(k, squared.certain().allowing(), None)

    def all_clip_factors(self, book: Book) -> list[Factors]:
        """Clip factors of all groups, where nothing was summed yet, from one look at the norms."""
        found = []
        for k in range(len(self.groups)):
            entries = self._entries(k, book)
            found.append(total([e.squared_norm for e in entries]) if entries else self._no_norms())
        device = self._finite.device  # groups may lie on several
        fine = torch.stack([squared.sound().all().to(device) for squared in found])
        if bool(fine.all() & self._finite.all()):
            return [self.factors_of(k, one.allowing(), None) for k, one in enumerate(found)]
        return [self.factors_of(k, *self._examined(k, book)) for k in range(len(self.groups))]

    def squared_group_norm(self, k: int, book: Book) -> tuple[Tensor, Tensor | None]:
        """``|g_k|^2`` of group ``k``, ``(B,)``, and who is dropped, as in `Factors`."""
        entries = self._entries(k, book)
        squared = total([entry.squared_norm for entry in entries]) if entries else self._no_norms()
        # One look for the whole group: each costs a GPU a halt.
        if bool((squared.sound() & self._finite.to(squared.value.device)).all()):
            return squared.allowing(), None
        return self._examined(k, book)

    def factors_of(self, k: int, squared: Tensor, dropped: Tensor | None) -> Factors:
        """Clip factors of group ``k`` from its squared norms, ``(B,)``."""
        norms = squared.sqrt()
        factors = self._clip(k, norms)
        if dropped is not None:
            factors = factors.masked_fill(dropped, 0.0)
        self._norms[k], self._factors[k] = norms, factors
        return Factors(factors, dropped)

    def add_sums(self, k: int, book: Book, factors: Factors) -> None:
        """Add ``sum_i factor_i G_i`` of group ``k``'s parameters, which leave the book."""
        for name in self.groups[k].parameters:
            if name in book:
                self.add_sum(name, book.pop(name).uses, factors)

    def add_sum(self, name: str, uses: Sequence[Use], factors: Factors) -> None:
        """Add ``sum_i factor_i G_i`` of one parameter to its ``.grad``."""
        parameter = self.parameters[name]
        total = None if self.sharded else parameter.grad
        for use in uses:
            if factors.dropped is not None:
                # One record's overflow must not reach the others: it is silenced, exactly.
                use = use.without(factors.dropped)
            if total is None:
                total = use.last_sum(factors.values)
            else:
                use.add_weighted_sum(factors.values, total)
        if not self.sharded:
            parameter.grad = total
        elif total is not None:
            self._formed.append((parameter, total))
            if sum(one.numel() for _, one in self._formed) >= _AT_ONCE:
                self._scatter()

    def _scatter(self) -> None:
        """Hand over to the cohort what was formed since the last time."""
        if self._cohort is not None and self._formed:
            self._cohort.scatter_sums(self._formed)
            self._formed = []

    @property
    def sharded(self) -> bool:
        """Whether sums go to a cohort as they are formed, and not into ``.grad`` at once."""
        return self._cohort is not None

    def expect(self, holds: Tensor, otherwise: Exception) -> None:
        """Have `result` raise an error unless a bool without dimensions is true.

        Where the host may look at once, it does.
        """
        if not self.careful:
            self._expected.append((holds, otherwise))
        elif not bool(holds):
            raise otherwise

    @torch.no_grad()
    def result(self) -> tuple[Tensor, Tensor]:
        """Norms and clip factors of all groups, ``(B, K)`` each, once all sums were formed.

        Raises:
            Exception: the first of those that were given to `expect` and are due.
        """
        self._scatter()
        for k in range(len(self.groups)):
            if k not in self._norms:
                self.clip_factors(k, {})
        device = self._finite.device  # groups may lie on several
        every = range(len(self.groups))
        norms = torch.stack([self._norms[k].to(device) for k in every], 1)
        if self._unread:
            finite = norms.isfinite().all() & self._finite.all()
            self._expected.insert(0, (finite, LostRecordError()))
        if self._expected:
            holds = torch.stack([one.to(device) for one, _ in self._expected])
            if not bool(holds.all()):
                raise self._expected[int(holds.long().argmin())][1]
        return norms, torch.stack([self._factors[k].to(device) for k in every], 1)

    def _entries(self, k: int, book: Book) -> list[Entry]:
        """Of the parameters of group ``k`` that took part."""
        return [book[name] for name in self.groups[k].parameters if name in book]

    def _no_norms(self) -> SquaredNorm:
        """Of a group of which no parameter took part: there is nothing to clip."""
        dtype = torch.promote_types(self.losses.dtype, torch.float32)
        zeros = self.losses.new_zeros(self.size, dtype=dtype)
        return SquaredNorm(zeros, zeros)

    def _examined(self, k: int, book: Book) -> tuple[Tensor, Tensor | None]:
        """A group's norms without what cancellation made doubtful, and who cannot be used."""
        entries = self._entries(k, book)
        parts = [
            norm if norm.exact or not uses else recomputed(norm, uses) for norm, uses in entries
        ]
        squared = (total(parts) if parts else self._no_norms()).allowing().clamp(min=0)
        dropped = ~(torch.isfinite(squared) & self._finite.to(squared.device))
        if not bool(dropped.any()):
            return squared, None
        self.dropped = True
        return squared, dropped
