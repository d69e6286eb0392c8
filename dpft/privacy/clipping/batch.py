"""One batch on its way through a plan: what all plans have in common.

Layers report their input and output gradient ``(a, g)`` in the order of the backward. A parameter
is *complete* when all its uses have arrived: its norm is taken then, over all uses together, so
that tied weights count once. A group is complete when all its parameters are: its clip factors can
be computed then, and with them its sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.calls import Call, Structure
from dpft.privacy.clipping.capture import Gate, Listener
from dpft.privacy.clipping.rules import SquaredNorm, UnsupportedLayerError, Use
from dpft.privacy.clipping.rules.interface import floor
from dpft.privacy.clipping.rules.uses import (
    DirectUse,
    exact_squared_norm,
    joint_per_example,
)
from dpft.privacy.precision import full_precision, on_device

if TYPE_CHECKING:
    from dpft.privacy.clipping.clipper import Clipper

# Numbers of sharded parameters' sums that are formed before they are scattered: enough to hide the
# latency of a collective, fewer than a layer of a model that needs sharding has.
_AT_ONCE = 1 << 23


class Entry(NamedTuple):
    """The norms of a complete parameter, and the uses that its sum is formed from."""

    squared_norm: SquaredNorm
    uses: list[Use]


Book = dict[str, Entry]
"""The complete parameters, by name."""


class LostRecordError(RuntimeError):
    """A record that has to be dropped is in sums already: its loss or gradient is not finite.

    Nothing was released: the sums are formed again, by a batch that is `careful`.
    """

    def __init__(self) -> None:
        super().__init__(
            "the loss or the gradient of a record is not finite, which was seen when sums had been "
            "formed; expected finite numbers. Set .grad to None, call clipper.reset() and begin "
            "the logical batch again: such a record is dropped then before its group is summed, "
            "at the cost of one wait of the host for each group"
        )


class Factors(NamedTuple):
    """Weighted clip factors of one group, ``(B,)``, 0 for ``dropped`` records; None: there is none.

    A record is dropped whose loss, or gradient in the group, is not finite.
    """

    values: Tensor
    dropped: Tensor | None


class ClippingBatch:
    """One batch, whose clipped sums a plan adds to the parameters' ``.grad``.

    ``losses`` are ``(B,)``, with ``rows`` of the model's batch for each, and ``weights`` as of
    `Clipper.backward`; ``arrived`` are calls with their output gradients, if a backward was
    already.

    Attributes:
        size: ``B``.
        group_of: the index of a parameter's group.
        looks: whether the host may look at any number: not while a program is traced, which is
            given ``thresholds`` as tensors, nor where the sums must be those of a program.
        careful: whether the host may look at the numbers of each group as it completes. Otherwise
            it reads once, at the end: see `LostRecordError`.
        sharded: whether sums go to a cohort as they are formed, and not into ``.grad`` at once.
    """

    def __init__(
        self,
        clipper: Clipper,
        structure: Structure,
        losses: Tensor,
        rows: int,
        weights: Tensor | None = None,
        arrived: Sequence[tuple[Call, Tensor]] | None = None,
        thresholds: Sequence[Any] | None = None,
    ) -> None:
        self.capture = clipper.capture
        self.groups = clipper.groups
        self.parameters = clipper.parameters
        traced = thresholds is not None
        # Stages of a pipeline wait for each other.
        self.careful = not traced and (clipper.careful or arrived is not None)
        self.looks = self.careful or (clipper.looks and not traced)
        self.structure = structure
        self.losses = losses
        self.rows = rows
        self.weights = weights
        self.size = len(losses)
        self.group_of = {n: k for k, group in enumerate(self.groups) for n in group.parameters}
        self.sharded = clipper.sharded
        self._clip, self._thresholds = clipper.clip_function, thresholds or clipper.thresholds
        self._observers = clipper.observers
        self._cohort = clipper.cohort
        self._arrived = arrived
        self._finite = torch.isfinite(losses.detach())
        self._norms: dict[int, Tensor] = {}
        self._factors: dict[int, Tensor] = {}
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
        """Run one backward towards the layers' outputs, which forms no weight gradient.

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
            added = call.uses(g, self.size, self.rows)
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
        if received != len(calls):
            raise UnsupportedLayerError(
                f"{len(calls)} layer calls are on the way to the losses, but a backward reached "
                f"{received} of them; expected all: does a layer give several outputs of which the "
                "first is unused?"
            )

    def autograd_writes(self) -> None:
        """Let autograd add the sums to ``.grad`` from here on."""
        for observer in self._observers:
            observer.before_autograd_writes()

    def clip_factors(self, k: int, book: Book) -> Factors:
        """Return clip factors of group ``k`` from the norms of its parameters, all complete.

        Guarantee: times its factor no record's gradient in the group is longer than ``C_k``.
        """
        if self.careful:
            return self.factors_of(k, *self.squared_group_norm(k, book))
        self._unread = True
        # A dropped record makes NaN of the sums, which are then given up; no other factor is NaN.
        return self.factors_of(k, self._total(k, book).certain().allowing(), None)

    def all_clip_factors(self, book: Book) -> list[Factors]:
        """Return factors of all groups, before any sum, from one look at the norms."""
        if not self.looks:
            return [self.clip_factors(k, book) for k in range(len(self.groups))]
        found = [self._total(k, book) for k in range(len(self.groups))]
        device = self._finite.device  # groups may be on several
        fine = torch.stack([squared.sound().all().to(device) for squared in found])
        if bool(fine.all() & self._finite.all()):
            return [self.factors_of(k, one.allowing(), None) for k, one in enumerate(found)]
        return [self.factors_of(k, *self._examined(k, book)) for k in range(len(self.groups))]

    def squared_group_norm(self, k: int, book: Book) -> tuple[Tensor, Tensor | None]:
        """Return ``|g_k|^2`` of group ``k``, ``(B,)``, and the dropped records, as in `Factors`."""
        squared = self._total(k, book)
        # One look for the whole group: each costs a GPU a halt.
        if bool((squared.sound() & self._finite.to(squared.value.device)).all()):
            return squared.allowing(), None
        return self._examined(k, book)

    def factors_of(self, k: int, squared: Tensor, dropped: Tensor | None) -> Factors:
        """Return clip factors of group ``k`` from its squared norms, ``(B,)``."""
        norms = squared.sqrt()
        factors = self._clip(norms, self._thresholds[k])
        if dropped is not None:
            factors = factors.masked_fill(dropped, 0.0)
        self._norms[k], self._factors[k] = norms, factors
        return Factors(weighted(factors, self.weights), dropped)

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

    def expect(self, holds: Tensor, otherwise: Exception) -> None:
        """Have `result` raise an error unless a bool holds; the host looks at once where it may."""
        if not self.careful:
            self._expected.append((holds, otherwise))
        elif not bool(holds):
            raise otherwise

    @torch.no_grad()
    def result(self) -> tuple[Tensor, Tensor]:
        """Return norms and clip factors of all groups, ``(B, K)`` each, once sums were formed."""
        norms, factors, finite = self.outcome()
        if self._unread:
            self._expected.insert(0, (finite, LostRecordError()))
        if self._expected:
            holds = torch.stack([one.to(norms.device) for one, _ in self._expected])
            if not bool(holds.all()):
                raise self._expected[int(holds.long().argmin())][1]
        return norms, factors

    def outcome(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same, and whether all norms and losses are finite; the host reads nothing."""
        self._scatter()
        for k in range(len(self.groups)):
            if k not in self._norms:
                self.clip_factors(k, {})
        device = self._finite.device  # groups may be on several
        every = range(len(self.groups))
        norms = torch.stack([self._norms[k].to(device) for k in every], 1)
        factors = torch.stack([self._factors[k].to(device) for k in every], 1)
        return norms, factors, norms.isfinite().all() & self._finite.all()

    def _total(self, k: int, book: Book, examined: bool = False) -> SquaredNorm:
        """Join the squared norms of group ``k``'s parameters that took part.

        ``examined`` computes again what cancellation has made doubtful.
        """
        entries = [book[name] for name in self.groups[k].parameters if name in book]
        if not entries:  # there is nothing to clip
            dtype = torch.promote_types(self.losses.dtype, torch.float32)
            zeros = self.losses.new_zeros(self.size, dtype=dtype)
            return SquaredNorm(zeros, zeros)
        parts = [
            recomputed(norm, uses) if examined and uses and not norm.exact else norm
            for norm, uses in entries
        ]
        value = _sum([part.value for part in parts])
        roundings = [part.rounding for part in parts if part.rounding is not None]
        rounding = _sum(roundings) if roundings else None
        exact = all(part.exact for part in parts)
        return SquaredNorm(value, value if exact else _sum([p.scale for p in parts]), rounding)

    def _examined(self, k: int, book: Book) -> tuple[Tensor, Tensor | None]:
        """Return a group's norms without what cancellation made doubtful, and dropped records."""
        squared = self._total(k, book, examined=True).allowing().clamp(min=0)
        dropped = ~(torch.isfinite(squared) & self._finite.to(squared.device))
        return squared, dropped if bool(dropped.any()) else None


def weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    """Multiply factors or losses by records' weights, if these are more than a mask of padding."""
    if weights is None or weights.dtype == torch.bool:
        return values
    return values * on_device(weights, values.device).to(values.dtype)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """Add up one addend or many, in two operations: each costs a GPU a start."""
    return torch.stack(list(parts)).sum(0) if len(parts) > 1 else parts[0]


def formed(uses: Sequence[Use]) -> Use:
    """Form the per-example gradients of one parameter, from all its uses."""
    if len(uses) == 1 and isinstance(uses[0], DirectUse):
        return uses[0]
    return DirectUse(joint_per_example(uses), owned=True)


def cheapest_forms(uses: list[Use], batch: int, *, transient: bool) -> list[Use]:
    """Return ``(a, g)`` as they are, or the gradients where holding those is cheaper."""
    if len(uses) == 1:
        return [uses[0].cheapest_form(transient)]
    return [formed(uses)] if batch == 1 else uses


def recomputed(norm: SquaredNorm, uses: Sequence[Use]) -> SquaredNorm:
    """Replace what cancellation may have understated, one record at a time."""
    value = norm.value.clone()
    # What is left after cancellation is no smaller than what rounding will make of it in the sum.
    least = floor(norm.scale)
    # Zero of zero terms is exact; NaN is not zero.
    for index in (~norm.trusted() & (norm.scale != 0)).nonzero():
        exact = exact_squared_norm([use.rows(index) for use in uses]).value
        value[index] = torch.maximum(exact, least[index])
    return SquaredNorm(value, value, norm.rounding)
