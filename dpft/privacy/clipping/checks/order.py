"""Whether each layer's rows are the records of the losses, each by itself and in their order.

A layer that sees the records in another order than the losses has norms of other records than its
sum, and so has one whose rows depend on several records. A model that does so by its data (records
sorted by length, masked positions gathered into as many rows as there are records) may look right
in many batches before: where the graph lets rows change places, every batch is looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call, check_rows
from dpft.privacy.clipping.capture import Capture, Listener
from dpft.privacy.clipping.checks.structure import Structure
from dpft.privacy.clipping.rules import UnsupportedLayerError

# Factors of a record's loss: powers of two, which scale a gradient without rounding it, and of at
# most 1, so that none overflows.
_FACTORS = 8

# Sums over a row that are compared as well as its norm: a prime number of them, so that none is
# over a whole dimension of a layer, where softmax and norm layers make gradients cancel.
_SUMS = 61

# What rounding may change as a share of a row's norm at the call where it is largest: what is zero
# but for rounding, as behind a softmax, is other rounding then.
_ANYWHERE = 1e-5


def factors_of(batch: int, turn: int) -> Tensor:
    """Return factors of the records' losses, ``(B,)``: all different, for up to eight records.

    ``turn`` changes them from batch to batch: two of many records share one in one batch of eight.
    """
    generator = torch.Generator().manual_seed(turn)
    # Said, or a default device of the caller's would be asked for numbers of this generator.
    return 0.5 ** (torch.randperm(batch, generator=generator, device="cpu") % _FACTORS)


@contextmanager
def each_gradient(
    parameters: Mapping[str, Tensor], complete: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Around a backward to the parameters: report each gradient once complete, and keep none."""

    def at(name: str, gradient: Tensor) -> Tensor:
        complete(name, gradient)
        # In place of the gradient autograd keeps one number.
        return gradient.new_zeros(()).expand_as(gradient)

    handles = [p.register_hook(partial(at, name)) for name, p in parameters.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Reweighted:
    """Whether a second backward brings the output gradients of the first, reweighted by record.

    It does where the backward is linear. A hook that clamps gradients is not, nor is a model whose
    rows are in another order inside: the norms would be of other gradients than the sum. Rounding
    may change a ``share`` of a row's norm. With ``sums``, for weights that are powers of two, sums
    over parts of a row are compared too: they are linear, so that a share ``s`` of another record's
    gradient shows in them as ``s``, where in a norm it may as ``s^2``.
    """

    def __init__(self, share: float = 1e-2, sums: bool = False) -> None:
        self._share = share
        self._sums = sums
        self._seen: dict[int, Tensor] = {}
        self._scales = self._allowed = torch.empty(0)
        self._excess: list[Tensor] = []
        self._names: list[str] = []

    def first(self, call: Call, g: Tensor) -> None:
        """Note norms, and sums, of ``g``'s rows: ``(B, 1 + n)``."""
        self._seen[id(call)] = _numbers(g.detach(), self._sums)

    def by(self, scales: Tensor) -> None:
        """Say what the second backward multiplies each row with, ``(B,)``."""
        self._scales = scales
        largest = torch.zeros_like(scales)
        for numbers in self._seen.values():
            norms = numbers[:, 0].to(largest)
            largest = torch.maximum(largest, norms.masked_fill(~norms.isfinite(), 0.0))
        self._allowed = _ANYWHERE * scales * largest

    def second(self, call: Call, g: Tensor) -> None:
        """Compare; what came of it is read in `holds`, since to read it makes a GPU halt."""
        numbers = self._seen.pop(id(call), None)
        if numbers is None:
            return
        expected = numbers * self._scales.to(numbers)[:, None]
        allowed = self._share * expected[:, 0] + self._allowed.to(numbers)
        excess = (_numbers(g.detach(), self._sums) - expected).abs().amax(1) - allowed
        # A record whose loss is not finite is dropped, wherever its rows are.
        self._excess.append(excess.masked_fill(~expected[:, 0].isfinite(), -1.0).max())
        self._names.append(next(iter(call.site.names.values())))

    def holds(self) -> Tensor:
        """Return whether all agreed, a bool without dimensions."""
        return self._fine().all()

    def disagreeing(self) -> str | None:
        """Return a parameter of the first call of the backward that did not agree, if any."""
        pairs = zip(self._names, self._fine().tolist(), strict=True)
        return next((name for name, good in pairs if not good), None)

    def _fine(self) -> Tensor:
        """Return of every call that was compared, whether it agreed, bool ``(n,)``."""
        if not self._excess:
            return torch.ones(0, dtype=torch.bool)
        return torch.stack([one.to(self._excess[0].device) for one in self._excess]) <= 0


def _numbers(rows: Tensor, sums: bool) -> Tensor:
    """Return the rows' norms, and sums of every 61st number of each: ``(B, 1 + min(n, 61))``."""
    flat = rows.flatten(1)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
    if not sums:
        return norms[:, None]
    kind = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.shape[1] // _SUMS * _SUMS
    if not whole:
        return torch.cat([norms[:, None], flat.to(kind)], 1)
    summed = flat[:, :whole].unflatten(1, (-1, _SUMS)).sum(1, dtype=kind)
    summed[:, : flat.shape[1] - whole] += flat[:, whole:]
    return torch.cat([norms[:, None], summed], 1)


def check_order(
    capture: Capture, losses: Tensor, structure: Structure, rows: int, turn: int
) -> None:
    """Check that each layer's rows are the records of the losses, in their order.

    Of losses multiplied by powers of two each row's output gradient is multiplied likewise, to the
    last bit. Two backwards towards the layers' outputs, without one weight gradient: of the batch
    they hold nothing but its graph.

    Raises:
        UnsupportedLayerError: if a row is not its record's.
    """
    order = Reweighted(3e-2 if structure.halved else 1e-3, sums=True)
    batch, leaves = len(losses), structure.leaves

    def backward(weighted: Tensor, note: Listener) -> None:
        def listener(call: Call, g: Tensor) -> None:
            call.hold()  # what is recomputed and not asked for is kept
            check_rows(call, batch * rows, g)
            call.let_go()
            note(call, g)

        if capture.packed:
            with each_gradient(leaves, lambda name, g: None), capture.listening(listener):
                targets = [*leaves.values()]
                torch.autograd.grad(weighted.sum(), targets, retain_graph=True, allow_unused=True)
            return
        others, calls = structure.other_leaves, structure.reached
        capture.backward(weighted, calls, listener, other_leaves=others, retain_graph=True)

    backward(losses, order.first)
    factors = factors_of(batch, turn).to(losses.device)
    order.by(factors.repeat_interleave(rows))
    backward(losses * factors.to(losses.dtype), order.second)
    name = order.disagreeing()
    if name is None:
        return
    names = ", ".join(sorted({node.name() for node in structure.row_permuting_nodes}))
    why = (
        f"rows change places inside the model ({names})"
        if names
        else "records depend on each other, rows are in another order, or a hook changes gradients "
        "by their size"
    )
    raise UnsupportedLayerError(
        f"the rule for parameter {name!r} gives another gradient than autograd: when each record's "
        "loss got a factor, not every row of the layer's output gradient got its own record's, "
        f"since {why}; expected row i of every layer to be of record i alone, in every batch: sort "
        "and gather before the model is called, and normalise within a record"
    )
