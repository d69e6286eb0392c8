"""The check that each layer's rows are the records of the losses, in their order.

A layer that sees the records in another order than the losses has norms of other records than its
sum, and so has one whose rows depend on several records. A model that does so by its data (records
sorted by length, masked positions gathered into as many rows as there are records) may look right
in many batches before: where the graph lets rows change places, every batch is looked at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node

from dpft.privacy.clipping.calls import Call, Structure
from dpft.privacy.clipping.capture import Capture, Listener
from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.reweighted import Reweighted

# Factors of a record's loss: powers of two, which scale a gradient without rounding it, and of at
# most 1, so that none overflows.
_FACTORS = 8


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


def check_order(
    capture: Capture,
    losses: Tensor,
    structure: Structure,
    rows: int,
    turn: int,
    moving: Sequence[Node],
) -> None:
    """Check that each layer's rows are the records of the losses, in their order.

    Of losses multiplied by powers of two each row's output gradient is multiplied likewise, to the
    last bit. Two backwards towards the layers' outputs, without one weight gradient: of the batch
    they hold nothing but its graph. ``moving`` are functions that may move rows, for the error.

    Raises:
        UnsupportedLayerError: if a row is not its record's.
    """
    order = Reweighted(3e-2 if structure.halved else 1e-3, sums=True)
    batch, leaves = len(losses), structure.leaves

    def backward(weighted: Tensor, note: Listener) -> None:
        def listener(call: Call, g: Tensor) -> None:
            call.hold()  # what is recomputed and not asked for is kept
            call.check_rows(g, batch * rows)
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
    names = ", ".join(sorted({node.name() for node in moving}))
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
