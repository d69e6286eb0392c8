"""Plans: the algorithms by which sums of clipped gradients are formed. All leave the same sums.

============ ========= ============================================ ==========================
plan         backwards what is held                                 source
============ ========= ============================================ ==========================
materialised one       every per-example gradient                   Abadi et al. 2016; Opacus
lee_kifer    two       the graph, and one layer's gradients         Lee & Kifer 2021
ghost        two       the graph                                    Li et al. 2022, section 4
bk           one       ``(a, g)`` of all layers, to the end         Bu et al. 2023
fused        one       ``(a, g)`` of one group, freed on the way    He et al. 2022, section 3
============ ========= ============================================ ==========================

A plan is a function of a `ClippingBatch`. With one backward, sums are formed from what it brought,
at its end or inside it. With two, the first brings norms, and the second is that of the reweighted
losses (Li et al. 2022, section 4.1). One factor per record weighs the whole of its loss, so that
there can be one group only.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from dpft.privacy.checks import Reweighted, random_states
from dpft.privacy.clipping.batch import (
    Book,
    ClippingBatch,
    Entry,
    Factors,
    cheapest_forms,
    formed,
    recomputed,
)
from dpft.privacy.clipping.calls import Call, dominates
from dpft.privacy.clipping.capture import Gate
from dpft.privacy.clipping.rules import DirectUse, SquaredNorm, UnsupportedLayerError, Use
from dpft.privacy.clipping.rules.interface import floor
from dpft.privacy.clipping.rules.uses import (
    MAX_TRANSIENT_NUMEL,
    joint_bound,
    joint_rounding,
    joint_squared_norm,
)
from dpft.privacy.precision import full_precision

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


def materialised(batch: ClippingBatch) -> None:
    """Form ``sum_i g_i min(1, C / |g_i|)`` with every ``g_i`` formed (Abadi et al. 2016).

    What DP-SGD says, done literally, and what Opacus does: memory grows with batch times model
    size. It serves comparison and debugging.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        uses = [formed(uses)]
        book[name] = Entry(joint_squared_norm(uses), uses)

    batch.backward(complete)
    _add_all(batch, book)


def bookkeeping(batch: ClippingBatch) -> None:
    """Form ``G = a^T diag(C_1, ..., C_B) g`` for each layer (Bu et al. 2023, Algorithm 1).

    Output gradients are booked until all norms are known. With several groups nothing is freed
    before the end either, as line 11 would: `groupwise` frees.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        # One record's gradient, once formed, becomes .grad in place. Where sums are scattered
        # it does not, and whole ones of all layers would be held at once.
        whole = batch.parameters[name].numel()
        held = sum(x.numel() for u in uses for x in vars(u).values() if isinstance(x, Tensor))
        if not (batch.sharded and batch.size == 1 and held < whole):
            uses = cheapest_forms(uses, batch.size, transient=False)
        book[name] = Entry(joint_squared_norm(uses), uses)  # line 5

    batch.backward(complete)  # lines 3 and 4
    _add_all(batch, book)


def _add_all(batch: ClippingBatch, book: Book) -> None:
    with torch.no_grad(), full_precision():
        for k, factors in enumerate(batch.all_clip_factors(book)):  # lines 7 and 8
            batch.add_sums(k, book, factors)  # lines 9 to 11


def groupwise(batch: ClippingBatch) -> None:
    """Form ``sum_i g_k^(i) min(1, C_k / |g_k^(i)|)`` for ``k = K`` to ``1`` inside the backward.

    A group is clipped as soon as the backward has passed it, and its inputs and output gradients
    are freed before the backward goes on (He et al. 2022, section 3.1 and Algorithm 1). This is
    Algorithm 1 of Bu et al. 2023 as well, for any partition into groups.
    """
    book: Book = {}
    names = {name for call in batch.structure.reached for name in call.site.names.values()}
    incomplete = Counter(batch.group_of[name] for name in names)
    small = [
        batch.size * sum(batch.parameters[name].numel() for name in group.parameters)
        <= MAX_TRANSIENT_NUMEL
        for group in batch.groups
    ]

    def complete(name: str, uses: list[Use]) -> None:
        k = batch.group_of[name]
        uses = cheapest_forms(uses, batch.size, transient=small[k])
        book[name] = Entry(joint_squared_norm(uses), uses)  # line 8
        incomplete[k] -= 1
        if not incomplete[k]:
            batch.add_sums(k, book, batch.clip_factors(k, book))  # line 9, fused

    batch.backward(complete)  # line 11


def ghost(batch: ClippingBatch) -> None:
    """Form the gradient of ``sum_i c_i L_i`` without per-example gradients (Li et al. 2022).

    With input ``a_i`` and output gradient ``g_i`` of record ``i`` a linear layer's gradient is
    ``g_i^T a_i`` (equation 1), and its squared norm is ``vec(a_i a_i^T) . vec(g_i g_i^T)``
    (equation 2), from two matrices of positions by positions.
    """
    book: Book = {}

    def complete(name: str, uses: list[Use]) -> None:
        passes.saw(uses)
        norm = joint_squared_norm(uses)  # equation 2: `rules.uses.MatrixUse`
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
        value = joint_squared_norm([gradient]).value
        value = torch.maximum(value, floor(joint_bound(uses)))
        book[name] = Entry(SquaredNorm(value, value, joint_rounding(uses)), [])

    passes = TwoBackwards(batch)
    passes.first(complete)
    passes.second(batch.clip_factors(0, book))


PRIVATE_PLANS: Mapping[str, Callable[[ClippingBatch], None]] = MappingProxyType(
    {
        "materialised": materialised,
        "lee_kifer": lee_kifer,
        "ghost": ghost,
        "bk": bookkeeping,
        "fused": groupwise,
    }
)


class TwoBackwards:
    """The first and the second backward of one batch.

    Where the losses depend on everything before the last layer's output through that output alone,
    both start there: what is above (a softmax over the vocabulary) is differentiated once, and
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
            with batch.capture.listening(None):  # frees the graph up to the layer's output
                (g,) = torch.autograd.grad(batch.losses.sum(), last.outputs)
            self._gate = Gate(last.outputs[0], g)

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
        Where a layer has other hooks, autograd's gradient may be another one than that of
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
        batch.autograd_writes()
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
