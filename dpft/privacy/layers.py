"""One rule per layer type: from a captured call to the per-example gradient of each parameter.

A layer's forward call is captured as its input ``a`` and the gradient ``g`` of the summed losses
with respect to its output. For record ``i`` the gradient of a linear weight is
``G_i = sum_t g_it a_it^T`` (Li et al. 2022, eq. 1), and everything that clipping needs of ``G_i``
can be had without forming it: its squared norm (eq. 2) and a weighted sum over records.

A *rule* turns one captured call into one `Use` per trainable parameter of the layer. A *use* is the
per-example gradient that one call contributes to one parameter, in implicit form. A parameter that
is used several times (tied weights, modules called twice) has several uses, which are joined
*before* the norm is taken (`joint_squared_norm`): the norm of a sum is not the sum of norms.

To support a new layer, write a function ``rule(module, a, g) -> dict[str, Use]`` and pass it as
``make_clipper(..., rules={"your.module.ClassName": rule})``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Upper bound on the elements of per-example gradients formed at once when a norm is computed by
# instantiation: 2**24 floats are 64 MiB, small beside a microbatch's activations.
_INSTANTIATION_ELEMENTS = 2**24


# A squared norm smaller than this many rounding errors of the terms it was summed from is not
# trusted: it could understate the norm, and clipping would let too much through.
_TRUSTED_ROUNDINGS = 1e3


class UnsupportedLayerError(ValueError):
    """A trainable parameter, or a use of one, cannot be clipped exactly. It is never skipped."""


class SquaredNorm(NamedTuple):
    """Squared norms ``(B,)``, and ``scale`` ``(B,)``: the size of the terms that were summed.

    ``scale`` is what the value would be had nothing cancelled, an upper bound. Where the value is
    a tiny fraction of it, the digits that are left are rounding errors.
    """

    value: Tensor
    scale: Tensor

    def doubtful(self) -> Tensor:
        """Where the value may be wrong by more than about a percent, bool ``(B,)``."""
        smallest = _TRUSTED_ROUNDINGS * torch.finfo(self.value.dtype).eps * self.scale
        # Written so that NaN counts as doubtful; zero of zero terms is exact.
        return ~((self.value > smallest) | (self.scale == 0))


class Use(ABC):
    """The contribution of one call to one parameter, for each of ``B`` records."""

    @abstractmethod
    def squared_norm(self) -> SquaredNorm:
        """Squared Frobenius norm of each record's gradient."""

    @abstractmethod
    def rows(self, index: Tensor) -> Use:
        """The same use for the records that ``index`` (int64) picks."""

    @abstractmethod
    def per_example(self) -> Tensor:
        """The gradients themselves, shape ``(B, *parameter.shape)``."""

    @abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Add ``sum_i weights[i] G_i`` to ``out`` (the parameter's shape); weights are ``(B,)``."""

    @abstractmethod
    def without(self, dropped: Tensor) -> Use:
        """The same use with the records where ``dropped`` (bool, ``(B,)``) contribute exactly zero.

        Needed because zero times infinity is not zero: a weight of 0 does not silence a record
        whose activations or gradients are not finite.
        """


@dataclass(frozen=True)
class MatrixUse(Use):
    """``G_i = sum_t left_it right_it^T``: linear weights; ``(B, T, p)`` and ``(B, T, d)``."""

    left: Tensor
    right: Tensor

    def squared_norm(self) -> SquaredNorm:
        length, p, d = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        if length == 1:
            value = self.left.square().sum((1, 2)) * self.right.square().sum((1, 2))
            return SquaredNorm(value, value)
        # Bu et al. 2023, section 3: Gram matrices cost 2T^2 numbers a record, the gradient p*d.
        if 2 * length * length <= p * d:
            left = torch.bmm(self.left, self.left.transpose(1, 2))
            right = torch.bmm(self.right, self.right.transpose(1, 2))
            return SquaredNorm((left * right).sum((1, 2)), _uncancelled(left, right))
        chunk = max(1, _INSTANTIATION_ELEMENTS // (p * d))
        pairs = zip(self.left.split(chunk), self.right.split(chunk), strict=True)
        value = torch.cat([torch.bmm(x.transpose(1, 2), y).square().sum((1, 2)) for x, y in pairs])
        return SquaredNorm(value, value)

    def rows(self, index: Tensor) -> MatrixUse:
        return MatrixUse(self.left[index], self.right[index])

    def per_example(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        left, right = self.left, self.right
        scale = weights[:, None, None]
        # Scaling the narrower side moves less memory; the product is the same.
        if left.shape[2] <= right.shape[2]:
            left = left * scale
        else:
            right = right * scale
        out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1))

    def without(self, dropped: Tensor) -> MatrixUse:
        return MatrixUse(_zero_rows(self.left, dropped), _zero_rows(self.right, dropped))


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
        # Two positions share a row of G exactly where their tokens are equal.
        same = self.ids[:, :, None] == self.ids[:, None, :]
        gram = torch.bmm(self.g, self.g.transpose(1, 2))
        return SquaredNorm((gram * same).sum((1, 2)), _uncancelled(gram))

    def rows(self, index: Tensor) -> EmbeddingUse:
        return EmbeddingUse(self.ids[index], self.g[index], self.num_embeddings)

    def per_example(self) -> Tensor:
        batch, _, d = self.g.shape
        out = self.g.new_zeros(batch, self.num_embeddings, d)
        return out.scatter_add_(1, self.ids[:, :, None].expand(-1, -1, d), self.g)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        out.index_add_(0, self.ids.flatten(), (self.g * weights[:, None, None]).flatten(0, 1))

    def without(self, dropped: Tensor) -> EmbeddingUse:
        return EmbeddingUse(self.ids, _zero_rows(self.g, dropped), self.num_embeddings)


@dataclass(frozen=True)
class DirectUse(Use):
    """Per-example gradients small enough to be held: biases and norm scales, ``(B, *shape)``."""

    gradients: Tensor

    def squared_norm(self) -> SquaredNorm:
        value = self.gradients.flatten(1).square().sum(1)
        return SquaredNorm(value, value)

    def rows(self, index: Tensor) -> DirectUse:
        return DirectUse(self.gradients[index])

    def per_example(self) -> Tensor:
        return self.gradients

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        out += torch.tensordot(weights, self.gradients, dims=1)

    def without(self, dropped: Tensor) -> DirectUse:
        return DirectUse(_zero_rows(self.gradients, dropped))


def joint_squared_norm(uses: Sequence[Use]) -> SquaredNorm:
    """Squared norm ``|sum_u G_i^(u)|^2`` of one parameter's gradient over all its uses.

    Uses of one kind join by concatenation along the sequence. A linear and an embedding use of one
    matrix (tied head and input embedding) add the cross term
    ``2 <G_head, G_emb> = 2 sum_{t,s} g_head[t, id_s] <a_t, g_emb_s>`` by gathering columns. Any
    other combination forms the per-example gradients and adds them.

    Guarantee: the result bounds what one record adds to this parameter, where it is not
    `SquaredNorm.doubtful`; joining after the norm instead would understate it by up to a factor
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
        matrix = MatrixUse(
            torch.cat([use.left for use in matrices], 1),
            torch.cat([use.right for use in matrices], 1),
        )
        parts.append(matrix.squared_norm())
    if embeddings:
        embedding = EmbeddingUse(
            torch.cat([use.ids for use in embeddings], 1),
            torch.cat([use.g for use in embeddings], 1),
            embeddings[0].num_embeddings,
        )
        parts.append(embedding.squared_norm())
    if matrices and embeddings:
        cross = 2 * _cross_term(matrix, embedding)
    value = torch.stack([part.value for part in parts]).sum(0) + cross
    scale = torch.stack([part.scale for part in parts]).sqrt().sum(0).square()
    return SquaredNorm(value, scale)


def exact_squared_norm(uses: Sequence[Use]) -> SquaredNorm:
    """The same by forming the gradients: dearer, but a sum of squares, which cannot cancel."""
    value = joint_per_example(uses).flatten(1).square().sum(1)
    return SquaredNorm(value, value)


def joint_per_example(uses: Sequence[Use]) -> Tensor:
    """Per-example gradients of one parameter, summed over its uses: ``(B, *shape)``."""
    total = uses[0].per_example()
    for use in uses[1:]:
        total = total + use.per_example()
    return total


def _cross_term(matrix: MatrixUse, embedding: EmbeddingUse) -> Tensor:
    """``<G_matrix, G_embedding>`` per record, ``(B,)``."""
    positions = matrix.left.shape[1]
    columns = embedding.ids[:, None, :].expand(-1, positions, -1)
    picked = matrix.left.gather(2, columns)
    return (picked * torch.bmm(matrix.right, embedding.g.transpose(1, 2))).sum((1, 2))


def _zero_rows(tensor: Tensor, dropped: Tensor) -> Tensor:
    return tensor.masked_fill(dropped.view(-1, *[1] * (tensor.dim() - 1)), 0)


def _uncancelled(*grams: Tensor) -> Tensor:
    """``(sum_t prod_k |x_t^(k)|)^2`` from the Gram matrices of the ``x^(k)``, ``(B,)``."""
    diagonals = torch.stack([gram.diagonal(dim1=1, dim2=2) for gram in grams]).clamp(min=0)
    return diagonals.prod(0).sqrt().sum(1).square()


def _sequence(tensor: Tensor) -> Tensor:
    """View ``(B, ..., d)`` as ``(B, T, d)``: all middle dimensions are positions of one record."""
    return tensor.flatten(1, -2) if tensor.dim() > 2 else tensor.unsqueeze(1)


def _trains(module: nn.Module, name: str) -> bool:
    parameter = getattr(module, name)
    return parameter is not None and bool(parameter.requires_grad)


Rule = Callable[[nn.Module, Tensor, Tensor], "dict[str, Use]"]


def linear(module: nn.Module, a: Tensor, g: Tensor) -> dict[str, Use]:
    """``nn.Linear``: weight ``(p, d)``, input ``(B, ..., d)``, output gradient ``(B, ..., p)``."""
    a, g = _sequence(a), _sequence(g)
    return _affine(module, MatrixUse(g, a), g)


def conv1d(module: nn.Module, a: Tensor, g: Tensor) -> dict[str, Use]:
    """GPT-2's ``Conv1D``: a linear layer whose weight is stored transposed, ``(d, p)``."""
    a, g = _sequence(a), _sequence(g)
    return _affine(module, MatrixUse(a, g), g)


def _affine(module: nn.Module, weight: MatrixUse, g: Tensor) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    if _trains(module, "weight"):
        uses["weight"] = weight
    if _trains(module, "bias"):
        uses["bias"] = DirectUse(g.sum(1))
    return uses


def embedding(module: nn.Module, a: Tensor, g: Tensor) -> dict[str, Use]:
    """``nn.Embedding``: indices ``(B, ...)``, output gradient ``(B, ..., d)``."""
    assert isinstance(module, nn.Embedding)
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        raise NotImplementedError(
            "Embedding with max_norm, scale_grad_by_freq or sparse=True has gradients that depend "
            "on the whole batch; expected all three at their defaults"
        )
    ids, g = a.flatten(1), g.flatten(1, -2)
    if module.padding_idx is not None:
        g = g.masked_fill((ids == module.padding_idx)[:, :, None], 0)
    return {"weight": EmbeddingUse(ids, g, module.num_embeddings)}


def layer_norm(module: nn.Module, a: Tensor, g: Tensor) -> dict[str, Use]:
    """``nn.LayerNorm``: scale and shift act elementwise on the normalised input."""
    assert isinstance(module, nn.LayerNorm)
    positions = tuple(range(1, g.dim() - len(module.normalized_shape)))
    uses: dict[str, Use] = {}
    if _trains(module, "weight"):
        normalised = F.layer_norm(a, module.normalized_shape, eps=module.eps)
        product = g * normalised
        uses["weight"] = DirectUse(product.sum(positions) if positions else product)
    if _trains(module, "bias"):
        uses["bias"] = DirectUse(g.sum(positions) if positions else g)
    return uses


# Keyed by qualified class name, so that a rule for a library's layer needs no import of it.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "torch.nn.modules.linear.Linear": linear,
        "transformers.pytorch_utils.Conv1D": conv1d,
        "torch.nn.modules.sparse.Embedding": embedding,
        "torch.nn.modules.normalization.LayerNorm": layer_norm,
    }
)


def find_rule(module: nn.Module, rules: Mapping[str, Rule]) -> Rule | None:
    """The rule for ``module``, or None.

    A subclass inherits its parent's rule only while it keeps the parent's ``forward``: a subclass
    that computes something else needs a rule of its own, and so does a module whose ``forward``
    was replaced.
    """
    if "forward" in vars(module):
        return None
    for cls in type(module).__mro__:
        rule = rules.get(f"{cls.__module__}.{cls.__qualname__}")
        if rule is not None:
            return rule if vars(cls)["forward"] is type(module).forward else None
    return None


def rule_names(rules: Iterable[str]) -> str:
    """The layer types that have a rule, for error messages."""
    return ", ".join(sorted(name.rsplit(".", 1)[-1] for name in rules))
