"""Two backwards: norms by the first, and by the second the sum, of reweighted losses.

What `lee_kifer` and `ghost` have in common (Li et al. 2022, section 4.1). One factor per record
weighs the whole of its loss, so that there can be one group only.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpft.privacy.clipping.calls import Call
from dpft.privacy.clipping.capture import Gate
from dpft.privacy.clipping.checks.order import Reweighted
from dpft.privacy.clipping.checks.structure import dominates
from dpft.privacy.clipping.plans.batch import (
    Book,
    ClippingBatch,
    Entry,
    Factors,
    formed,
    recomputed,
)
from dpft.privacy.clipping.rules import (
    DirectUse,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
    joint_bound,
    joint_rounding,
)
from dpft.privacy.clipping.rules.base import floor
from dpft.privacy.untouched import random_states

_NOT_LINEAR = (
    "the second backward brought other gradients than the first, reweighted: a hook changes "
    "gradients by their size, or rows change places inside the model; expected a backward that is "
    "linear. Type clip=bk, which needs one backward only"
)
_NOT_AGAIN = (
    "the backward drew random numbers, and the second one would draw others: activation "
    "checkpointing that does not keep their state (preserve_rng_state=False) with dropout; "
    "expected the same inputs of layers in both. Keep the state, or type clip=bk, which needs one "
    "backward only"
)


class TwoBackwards:
    """The first and the second backward of one batch.

    Where the losses depend on everything before the last layer's output through that output alone,
    both start there: what lies above (a softmax over the vocabulary) is differentiated once, and
    for the second only the rows of its gradient are reweighted. Not where parameters are sharded:
    they are put together for a backward that comes through the model's output, and taken away at
    its end.
    """

    def __init__(self, batch: ClippingBatch) -> None:
        self._batch = batch
        self._linear = Reweighted()
        self._gate: Gate | None = None
        self._held = True
        *others, last = batch.structure.reached
        if not batch.sharded and dominates(last, batch.losses, others):
            self._gate = batch.capture.open_gate(batch.losses, last)

    def first(self, complete: Callable[[str, list[Use]], None]) -> None:
        """Run the backward of ``sum_i L_i``, for norms; see `ClippingBatch.backward`."""
        losses = [self._batch.losses]
        packed = self._batch.capture.packed  # otherwise nothing runs again
        before = random_states(losses) if packed else []
        self._batch.backward(complete, gate=self._gate, keep_graph=True, observe=self._note)
        if packed and not all(map(torch.equal, before, random_states(losses))):
            raise UnsupportedLayerError(_NOT_AGAIN)

    def saw(self, uses: Sequence[Use]) -> None:
        """Note of which kind the uses of a complete parameter are, in the first backward."""
        self._held &= all(isinstance(use, DirectUse) for use in uses)

    def second(self, factors: Factors) -> None:
        """Run the backward of ``sum_i c_i L_i``, by which autograd adds its gradient to ``.grad``.

        Where anything is in half precision, autograd would round the whole batch's sum to that, and
        one record could move it by more than its threshold; and zero times infinity is not zero.
        Where others' hooks stand at a layer, autograd's gradient may be another one than that of
        the norms. Where parameters are sharded, autograd has no place for the sum. Where all norms
        are of gradients that were held, nothing bounds what autograd may leave where positions
        cancel. In these cases the backward is of ``sum_i L_i`` again, and the sums are formed from
        ``a`` and ``g``.
        """
        batch, c = self._batch, factors.values.detach()
        # A factor is 0 where a record is dropped, or a norm is beyond all numbers.
        dropped = factors.dropped is not None or (batch.careful and bool((c == 0).any()))
        safely = batch.sharded or batch.structure.halved or batch.capture.hooked or self._held
        if safely or dropped:
            batch.backward(lambda name, uses: batch.add_sum(name, uses, factors), gate=self._gate)
            return
        if not batch.capture.packed:  # so that the backward frees activations as it goes
            for call in batch.structure.reached:
                call.release()
        parameters = list(batch.parameters.values())
        self._linear.by(c.repeat_interleave(batch.rows))
        batch.guard.lift()  # from here on autograd writes the sums
        with batch.capture.listening(self._linear.second):
            if self._gate is None:
                (batch.losses * c).sum().backward(inputs=parameters)
            else:
                g = self._gate.g
                scales = c.to(g.dtype).repeat_interleave(batch.rows).view(-1, *[1] * (g.dim() - 1))
                # In place: it is the largest tensor of a language model's step, and done with.
                g = g.mul_(scales) if g.is_contiguous() else g * scales
                torch.autograd.backward([self._gate.edge], [g], inputs=parameters)
        batch.expect(self._linear.holds(), UnsupportedLayerError(_NOT_LINEAR))

    def _note(self, call: Call, g: Tensor) -> None:
        """Note the norms of ``g``, by which `second` is checked; not of the one it starts from."""
        if self._gate is None or call is not self._batch.structure.reached[-1]:
            self._linear.first(call, g)


def ghost(batch: ClippingBatch) -> None:
    """Form the gradient of ``sum_i c_i L_i`` without per-example gradients (Li et al. 2022).

    With input ``a_i`` and output gradient ``g_i`` of record ``i`` a linear layer's gradient is
    ``g_i^T a_i`` (equation 1), and its squared norm is ``vec(a_i a_i^T) . vec(g_i g_i^T)``
    (equation 2), from two matrices of positions by positions.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        passes.saw(uses)
        norm = batch.squared_norm(name, uses)  # equation 2: `rules.uses.MatrixUse`
        # Without a look, `clip_factors` allows for the rounding of all layers at once.
        if batch.careful and not norm.exact and not bool(norm.sound().all()):
            norm = recomputed(norm, uses)
        book[name] = Entry(norm, [])

    passes = TwoBackwards(batch)
    passes.first(complete)  # |grad L_i|, layer by layer
    passes.second(batch.clip_factors(0, book))  # of sum_i c_i L_i


def lee_kifer(batch: ClippingBatch) -> None:
    """Form the gradient of ``sum_i c_i L_i`` by norms of formed gradients (Lee & Kifer 2021).

    Per-example gradients are formed one layer at a time and forgotten.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        # The uses go; autograd will form the sum, in another order, where other digits cancel.
        passes.saw(uses)
        gradient = formed(uses)
        value = batch.squared_norm(name, [gradient]).value
        value = torch.maximum(value, floor(joint_bound(uses)))
        book[name] = Entry(SquaredNorm(value, value, joint_rounding(uses)), [])

    passes = TwoBackwards(batch)
    passes.first(complete)
    passes.second(batch.clip_factors(0, book))
