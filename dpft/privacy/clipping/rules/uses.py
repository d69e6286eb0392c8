"""The kinds of use: a matrix, a table lookup, and gradients that are small enough to be held.

A matrix's per-example norms come from Gram matrices, or from the gradients. For one record with
``T`` positions and a ``(p, d)`` weight, the Gram form (Li et al. 2022, eq. 2) multiplies
``T^2 (p + d)`` times and holds ``2 T^2`` numbers; forming the gradient multiplies ``T p d`` times
and holds ``p d`` (Bu et al. 2023, section 3). A gradient that has been formed also serves the
weighted sum, which then needs no further matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import torch
from torch import Tensor

from dpft.privacy.clipping.rules.interface import (
    SquaredNorm,
    Use,
    batched_gram,
    floor,
    zero_rows,
)
from dpft.privacy.precision import (
    LEAST_LENGTH,
    addmm_,
    allowance,
    bmm,
    mm,
    norm_kernels,
    rounding_by_gram,
    rounding_by_lengths,
    scaled_halves,
)

# Moving one number to memory and back costs about as much as this many multiplications.
MULTIPLICATIONS_PER_NUMBER = 40

# Numbers that may be formed where they are freed at once: 2**26 floats are 256 MiB.
MAX_TRANSIENT_NUMEL = 2**26

# Numbers that are squared and added up in one go.
_ROW_PIECE = 1024

# Numbers formed at once where a norm is computed in pieces: 2**24 floats are 64 MiB, small next to
# a microbatch's activations.
PIECE = 2**24


class Form(Enum):
    """A way to compute norms, and what is kept for the weighted sum."""

    GRAM = "gram"  # norms from Gram matrices; a and g are kept
    KEEP = "formed, kept"  # gradients are formed, and kept in place of a and g
    DROP = "formed, dropped"  # gradients are formed piecewise for the norms; a and g are kept


@lru_cache(maxsize=4096)
def choose_form(
    batch: int, length: int, p: int, d: int, *, transient: bool, halved: bool = False
) -> Form:
    """Return the cheapest form for ``batch`` records, by multiplications, that fits memory."""
    if length == 1 or batch == 0:
        return Form.GRAM
    gradient, held = p * d, length * (p + d)
    gram_time = length * length * (p + d)
    # Written once and read twice, where the Gram form reads what is warm.
    keep_time = 3 * MULTIPLICATIONS_PER_NUMBER * gradient if batch > 1 else gradient
    drop_time = length * gradient + MULTIPLICATIONS_PER_NUMBER * gradient
    fits = batch == 1 or gradient <= held or (transient and batch * gradient <= MAX_TRANSIENT_NUMEL)
    times = {Form.GRAM: gram_time, Form.DROP: drop_time}
    if fits:
        times[Form.KEEP] = keep_time
        if halved:  # gradients that are kept are summed in float32, without an allowance
            del times[Form.DROP]
    if batch * 2 * length * length > max(MAX_TRANSIENT_NUMEL, batch * gradient):
        del times[Form.GRAM]  # two T by T matrices would not fit where the gradient does
    return min(times, key=times.__getitem__)


@dataclass(frozen=True)
class MatrixUse(Use):
    """``G_i = sum_t g_it a_it^T``: linear weights; ``a`` is ``(B, T, d)``, ``g`` is ``(B, T, p)``.

    The weight is ``(p, d)``; with ``transposed`` it is stored as ``(d, p)``. Where both are in
    bfloat16, so are the factors of all products: see `dpft.privacy.precision`.
    """

    a: Tensor
    g: Tensor
    transposed: bool = False

    @property
    def left(self) -> Tensor:
        """The factor that runs along the stored weight's rows."""
        return self.a if self.transposed else self.g

    @property
    def right(self) -> Tensor:
        """The factor that runs along the stored weight's columns."""
        return self.g if self.transposed else self.a

    @property
    def halved(self) -> bool:
        return self.a.dtype == self.g.dtype == torch.bfloat16

    def squared_norm(self) -> SquaredNorm:
        if self.a.shape[1] == 1:
            a, g = (_lengths(x)[:, 0].square() for x in (self.a, self.g))
            value = self._with_underflow(a * g, a, g)
            return SquaredNorm(value, value, self.rounding())
        if self._by_gram():
            if self.halved and (kernels := norm_kernels(self.a, self.g)):
                lengths = _lengths(self.a) + LEAST_LENGTH
                value, bound, scale, *traces = kernels.gram_sums(self.a, self.g, lengths)
                value = self._with_underflow(value, *traces)
                return SquaredNorm(value, scale, allowance(bound, scale))
            a, g = batched_gram(self.a), batched_gram(self.g)
            value = self._with_underflow((a * g).sum((1, 2)), _trace(a), _trace(g))
            if not self.halved:
                return SquaredNorm(value, uncancelled(a, g))
            rounding, scale = rounding_by_gram(a, g)
            return SquaredNorm(value, scale, rounding)
        chunk = max(1, PIECE // (self.a.shape[2] * self.g.shape[2]))
        pairs = zip(self.left.split(chunk), self.right.split(chunk), strict=True)
        value = torch.cat([squared_rows(_per_example(x, y)) for x, y in pairs])
        # The sum is formed from a and g, in another order: what cancels here may not cancel there.
        value = torch.maximum(value, floor(self.bound()))
        return SquaredNorm(value, value, self.rounding())

    def bound(self) -> Tensor:
        terms: Tensor = (_lengths(self.a) * _lengths(self.g)).sum(1)
        return terms.square()

    def rounding(self) -> Tensor | None:
        return rounding_by_lengths(_lengths(self.a), _lengths(self.g)) if self.halved else None

    def rows(self, index: Tensor) -> MatrixUse:
        return replace(self, a=self.a[index], g=self.g[index])

    def per_example(self) -> Tensor:
        return _per_example(self.left, self.right)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        left, right = self._weighted(weights)
        return mm(left.flatten(0, 1).t(), right.flatten(0, 1))

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        left, right = self._weighted(weights)
        addmm_(out, left.flatten(0, 1).t(), right.flatten(0, 1))

    def without(self, dropped: Tensor) -> MatrixUse:
        return replace(self, a=zero_rows(self.a, dropped), g=zero_rows(self.g, dropped))

    def cheapest_form(self, transient: bool) -> Use:
        keep = self._chosen(transient) is Form.KEEP
        return DirectUse(self.per_example(), owned=True) if keep else self

    def _with_underflow(self, value: Tensor, a: Tensor, g: Tensor) -> Tensor:
        """Add to a squared norm what products below the smallest number may have taken of it.

        Each of a Gram matrix's ``T^2`` sums lacks up to one smallest number per product in it,
        times the other matrix, whose sum is at most ``T`` times its trace. Nothing of ordinary
        numbers; all there is where one side is below 1e-19, and the other so large that the
        gradient is not.
        """
        tiny = torch.finfo(a.dtype).tiny * self.a.shape[1]
        return value.add_(g, alpha=tiny * self.a.shape[2]).add_(a, alpha=tiny * self.g.shape[2])

    def _by_gram(self) -> bool:
        """Return whether norms come from Gram matrices: in half precision wherever those fit.

        They bound what rounding adds to the sum, and more closely than anything else does.
        """
        batch, length, d = self.a.shape
        room = max(MAX_TRANSIENT_NUMEL, batch * d * self.g.shape[2])
        fits = 2 * batch * length**2 <= room
        return (self.halved and fits) or self._chosen(transient=False) is Form.GRAM

    def _chosen(self, transient: bool) -> Form:
        batch, length, d = self.a.shape
        p = self.g.shape[2]
        return choose_form(batch, length, p, d, transient=transient, halved=self.halved)

    def _weighted(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        if self.halved:
            a = scaled_halves(self.a, weights)
            return (a, self.g) if self.transposed else (self.g, a)
        scale = weights[:, None, None]
        # Scaling the narrower side moves less memory; the product is the same.
        if self.left.shape[2] <= self.right.shape[2]:
            return self.left * scale, self.right
        return self.left, self.right * scale


@dataclass(frozen=True)
class EmbeddingUse(Use):
    """``G_i = sum_t onehot(ids_it) g_it^T`` without one-hot matrices; ``(B, T)``, ``(B, T, d)``.

    ``num_embeddings`` is the number of rows of the table. Rows of a padding index have had their
    ``g`` set to zero by the rule, as PyTorch gives them no gradient.
    """

    ids: Tensor
    g: Tensor
    num_embeddings: int

    def squared_norm(self) -> SquaredNorm:
        if self.ids.shape[1] == 1:
            value = self.g.square().sum((1, 2))
            return SquaredNorm(value, value)
        if kernels := norm_kernels(self.g):
            value, _, scale, *_ = kernels.gram_sums(self.ids, self.g)
            return SquaredNorm(value, scale)
        # Two positions share a row of G exactly where their tokens are equal.
        same = self.ids[:, :, None] == self.ids[:, None, :]
        gram = batched_gram(self.g)
        return SquaredNorm((gram * same).sum((1, 2)), uncancelled(gram))

    def bound(self) -> Tensor:
        terms: Tensor = torch.linalg.vector_norm(self.g, dim=2).sum(1)
        return terms.square()

    def rows(self, index: Tensor) -> EmbeddingUse:
        return replace(self, ids=self.ids[index], g=self.g[index])

    def per_example(self) -> Tensor:
        batch, _, d = self.g.shape
        out = self.g.new_zeros(batch, self.num_embeddings, d)
        return out.scatter_add_(1, _across(self.ids, self.g), self.g)

    def add_per_example(self, out: Tensor) -> None:
        # Without a table of zeros. Positions of one token are added up where the first of them is,
        # in their order: the same numbers to the last bit.
        first = (self.ids[:, :, None] == self.ids[:, None, :]).byte().argmax(2)
        summed = torch.zeros_like(self.g).scatter_add_(1, _across(first, self.g), self.g)
        out.scatter_add_(1, _across(self.ids, self.g), summed)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        out = self.g.new_zeros(self.num_embeddings, self.g.shape[2])
        self.add_weighted_sum(weights, out)
        return out

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        out.index_add_(0, self.ids.flatten(), (self.g * weights[:, None, None]).flatten(0, 1))

    def without(self, dropped: Tensor) -> EmbeddingUse:
        return replace(self, g=zero_rows(self.g, dropped))


@dataclass(frozen=True)
class DirectUse(Use):
    """Per-example gradients that are held: biases, norm scales, what was formed; ``(B, *shape)``.

    With ``owned`` nothing else reads the tensor: the last sum of one record is formed in its place.
    """

    gradients: Tensor
    owned: bool = False

    def squared_norm(self) -> SquaredNorm:
        value = squared_rows(self.gradients)
        return SquaredNorm(value, value)

    def rows(self, index: Tensor) -> DirectUse:
        return DirectUse(self.gradients[index])

    def per_example(self) -> Tensor:
        return self.gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = _flat_rows(self.gradients)
        return torch.mv(flat.t(), weights).view(self.gradients.shape[1:])

    def last_sum(self, weights: Tensor) -> Tensor:
        if self.owned and len(weights) == 1:
            return self.gradients[0].mul_(weights[0])
        return self.weighted_sum(weights)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        if out.is_contiguous():
            out.view(-1).addmv_(_flat_rows(self.gradients).t(), weights)
        else:
            out += self.weighted_sum(weights)

    def without(self, dropped: Tensor) -> DirectUse:
        return DirectUse(zero_rows(self.gradients, dropped), self.owned)


def joint_squared_norm(uses: Sequence[Use]) -> SquaredNorm:
    """Return the squared norm ``|sum_u G_i^(u)|^2`` of a parameter's gradient over its uses.

    Uses of one kind join by concatenation along the sequence. A linear and an embedding use of one
    matrix (tied head and input embedding) add the cross term
    ``2 <G_head, G_emb> = 2 sum_{t,s} g_head[t, id_s] <a_t, g_emb_s>`` by gathering columns. Any
    other combination forms the per-example gradients and adds them.

    Guarantee: the result bounds what one record adds to this parameter, where it is to be
    `SquaredNorm.trusted`; joining after the norm instead would understate it by up to a factor
    ``sqrt(uses)``.
    """
    if len(uses) == 1:
        return uses[0].squared_norm()
    matrices = [use for use in uses if isinstance(use, MatrixUse)]
    embeddings = [use for use in uses if isinstance(use, EmbeddingUse)]
    if len(matrices) + len(embeddings) < len(uses):
        return exact_squared_norm(uses)
    parts: list[SquaredNorm] = []
    cross: Tensor | float = 0.0
    if matrices:
        matrix = matrices[0]
        if len(matrices) > 1:
            # A weight may be used as it is stored by one layer and transposed by another.
            left = torch.cat([use.left for use in matrices], 1)
            right = torch.cat([use.right for use in matrices], 1)
            matrix = MatrixUse(right, left)
        parts.append(matrix.squared_norm())
    if embeddings:
        embedding = EmbeddingUse(
            torch.cat([use.ids for use in embeddings], 1),
            torch.cat([use.g for use in embeddings], 1),
            embeddings[0].num_embeddings,
        )
        parts.append(embedding.squared_norm())
    if matrices and embeddings:
        left, ids = matrix.left, embedding.ids[:, None, :]
        picked = left.gather(2, ids.expand(-1, left.shape[1], -1))
        cross = 2 * (picked * bmm(matrix.right, embedding.g.transpose(1, 2))).sum((1, 2))
    value = torch.stack([part.value for part in parts]).sum(0) + cross
    scale = torch.stack([part.scale for part in parts]).sqrt().sum(0).square()
    return SquaredNorm(value, scale, parts[0].rounding)


def exact_squared_norm(uses: Sequence[Use]) -> SquaredNorm:
    """Return the same by forming the gradients, as a sum of squares, which cannot cancel.

    Sums add up each use by itself, over all records: what cancels here may not cancel there.
    """
    value = squared_rows(joint_per_example(uses))
    value = torch.maximum(value, floor(joint_bound(uses)))
    return SquaredNorm(value, value, joint_rounding(uses))


def joint_bound(uses: Sequence[Use]) -> Tensor:
    """Return squared norms of one parameter's gradients had nothing cancelled, ``(B,)``."""
    return torch.stack([use.bound().sqrt() for use in uses]).sum(0).square()


def joint_rounding(uses: Sequence[Use]) -> Tensor | None:
    """Return what sums of a parameter's uses may add by rounding, as of `SquaredNorm`."""
    found = [part for use in uses if (part := use.rounding()) is not None]
    return torch.stack(found).sqrt().sum(0).square() if found else None


def joint_per_example(uses: Sequence[Use]) -> Tensor:
    """Form per-example gradients of one parameter, summed over its uses: ``(B, *shape)``."""
    total = uses[0].per_example()
    if len(uses) > 1 and isinstance(uses[0], DirectUse):
        total = total.clone()  # the use keeps it; all others form theirs anew
    for use in uses[1:]:
        use.add_per_example(total)
    return total


def _flat_rows(x: Tensor) -> Tensor:
    """View as ``(B, n)``; of a parameter without dimensions ``(B,)`` is ``(B, 1)``."""
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)


def squared_rows(x: Tensor) -> Tensor:
    """Return the squared norm of each row, ``(B, ...)`` to ``(B,)``, without a squared copy.

    In pieces: torch's norm adds up a row in few running sums, and over tens of millions of float32
    numbers loses percents of the result, always downwards.
    """
    flat = _flat_rows(x)
    length = flat.shape[1]
    if length <= _ROW_PIECE:
        norms: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return norms.square()
    if not flat.is_contiguous():
        return flat.square().sum(1)
    # In as few pieces as there must be, if they can have one size.
    pieces = -(-length // _ROW_PIECE)
    size = _ROW_PIECE if length % pieces else length // pieces
    whole = length // size * size
    norms = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, size)), dim=2)
    total = norms.square().sum(1)
    return total + flat[:, whole:].square().sum(1) if whole < length else total


def uncancelled(*grams: Tensor) -> Tensor:
    """Return ``(sum_t prod_k |x_t^(k)|)^2`` from the Gram matrices of the ``x^(k)``, ``(B,)``."""
    product = grams[0].diagonal(dim1=1, dim2=2)
    for gram in grams[1:]:
        product = product * gram.diagonal(dim1=1, dim2=2)
    return product.clamp(min=0).sqrt().sum(1).square()


def _per_example(left: Tensor, right: Tensor) -> Tensor:
    return bmm(left.transpose(1, 2), right)


def _across(ids: Tensor, g: Tensor) -> Tensor:
    """Expand indices ``(B, T)`` to all numbers of ``g``, ``(B, T, d)``."""
    return ids[:, :, None].expand_as(g)


def _lengths(x: Tensor) -> Tensor:
    """Return ``|x_t|``, ``(B, T)``, in float32 at least."""
    lengths: Tensor = torch.linalg.vector_norm(
        x, dim=2, dtype=torch.promote_types(x.dtype, torch.float32)
    )
    return lengths


def _trace(gram: Tensor) -> Tensor:
    """Return ``sum_t |x_t|^2`` from the Gram matrix: ``(B, T, T)`` to ``(B,)``."""
    return gram.diagonal(dim1=1, dim2=2).sum(1)
