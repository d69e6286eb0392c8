"""Whether each layer's rows are the records of the losses, each by itself and in their order.

A layer that sees the records in another order than the losses has norms of other records than its
sum, and so has one whose rows depend on several records. A model that always does so is found on
its first batch. One that does so by its data (records sorted by length, masked positions gathered
into as many rows as there are records) may look right in many batches before: where the graph lets
rows change places, every batch is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call, check_rows
from dpft.privacy.clipping.capture import Capture, Listener
from dpft.privacy.clipping.checks.reweighted import Reweighted
from dpft.privacy.clipping.checks.structure import Structure
from dpft.privacy.clipping.rules import UnsupportedLayerError

# Factors of a record's loss: powers of two, which scale a gradient without rounding it, and of at
# most 1, so that none overflows.
_FACTORS = 8


def factors_of(batch: int, turn: int) -> Tensor:
    """Factors of the records' losses, ``(B,)``: all different, for up to eight records.

    Args:
        batch: ``B``.
        turn: changes them from one batch to the next: two of many records have the same one in one
            of eight.
    """
    generator = torch.Generator().manual_seed(turn)
    # Said, or a default device of the caller's would be asked for numbers of this generator.
    return 0.5 ** (torch.randperm(batch, generator=generator, device="cpu") % _FACTORS)


@contextmanager
def each_gradient(
    parameters: Mapping[str, Tensor], complete: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Around a backward to the parameters: each gradient as it is complete, and kept by nobody."""

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
    parameters: Mapping[str, Tensor],
    rows: int,
    turn: int,
) -> None:
    """Check that each layer's rows are the records of the losses, in their order.

    Of losses multiplied by powers of two each row's output gradient is multiplied likewise, to the
    last bit. Two backwards towards the layers' outputs, without one weight gradient: of the batch
    they hold nothing but its graph.

    Args:
        capture: of the calls.
        losses: per-example losses, ``(B,)``.
        structure: of their graph.
        parameters: the trainable parameters.
        rows: of the model's batch for each loss.
        turn: see `factors_of`.

    Raises:
        UnsupportedLayerError: if a row is not its record's.
    """
    order = Reweighted(3e-2 if structure.halved else 1e-3, sums=True)
    batch = len(losses)

    def backward(weighted: Tensor, listener: Listener) -> None:
        if capture.packed:
            # All that is recomputed is asked for, and so let go.
            leaves = list(parameters.values())
            with each_gradient(parameters, lambda name, g: None), capture.listening(listener):
                torch.autograd.grad(weighted.sum(), leaves, retain_graph=True, allow_unused=True)
            return
        capture.backward(
            weighted,
            structure.reached,
            listener,
            other_leaves=structure.other_leaves,
            retain_graph=True,
        )

    def first(call: Call, g: Tensor) -> None:
        call.hold()
        check_rows(call, batch * rows, g)
        call.let_go()
        order.first(call, g)

    backward(losses, first)
    factors = factors_of(batch, turn).to(losses.device)
    order.by(factors.repeat_interleave(rows))

    def second(call: Call, g: Tensor) -> None:
        call.hold()  # as above: what is recomputed and not asked for is kept
        call.let_go()
        order.second(call, g)

    backward(losses * factors.to(losses.dtype), second)
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
