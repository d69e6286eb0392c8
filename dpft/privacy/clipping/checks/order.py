"""Rows that change places inside a model: where the graph lets them, every batch is checked.

A layer that sees the records in another order than the losses has norms of other records than its
sum. A model that always does so is found on its first batch (`verify.RuleSums`). One that does so
by its data (records sorted by length, masked positions gathered into as many rows as there are
records) may look right in many batches before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call, check_rows
from dpft.privacy.clipping.capture import Capture, Listener
from dpft.privacy.clipping.checks.reweighted import Reweighted
from dpft.privacy.clipping.checks.structure import Structure
from dpft.privacy.clipping.rules import UnsupportedLayerError

# Factors of a record's loss: powers of two, which scale a gradient without rounding it.
_FACTORS = 8


def check_order(
    capture: Capture, losses: Tensor, structure: Structure, rows: int, turn: int
) -> None:
    """Check that each layer's rows are the records of the losses, in their order.

    Of losses multiplied by powers of two each row's output gradient is multiplied likewise, to the
    last bit. Two backwards towards the layers' outputs, without one weight gradient.

    Args:
        capture: of the calls.
        losses: per-example losses, ``(B,)``.
        structure: of their graph.
        rows: of the model's batch for each loss.
        turn: changes the factors from one batch to the next: two records have the same one in one
            of eight.

    Raises:
        UnsupportedLayerError: if a row is not its record's.
    """
    order = Reweighted()
    batch = len(losses)

    def backward(weighted: Tensor, listener: Listener) -> None:
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
    generator = torch.Generator().manual_seed(turn)
    drawn = torch.randint(_FACTORS, (batch,), generator=generator)
    factors = (2.0**drawn).to(losses.device)
    order.by(factors.repeat_interleave(rows))
    backward(losses * factors.to(losses.dtype), order.second)
    names = ", ".join(sorted({node.name() for node in structure.row_permuting_nodes}))
    if not bool(order.holds()):
        raise UnsupportedLayerError(
            f"rows change places inside the model ({names}), so that a layer's rows are not the "
            "records of the losses in their order; expected row i of every layer to be of record "
            "i: sort and gather before the model is called"
        )
