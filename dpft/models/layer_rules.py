"""Clipping rules for layers of transformers, and for the layers of `dpft.models`.

Families of transformers have copies of a class: a copy is recognised by its compiled code (140
families have a copy of Llama's norm in 5.23; Gemma's ``1 + weight`` is another formula).
`dpft` registers this module with `dpft.privacy`; `Family` says what its names are for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import CodeType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules import (
    Change,
    Changed,
    DirectUse,
    Rule,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
)
from dpft.privacy.clipping.rules.interface import floor, trains
from dpft.privacy.clipping.rules.layers import (
    ConvRule,
    ConvUse,
    EmbeddingRule,
    LinearRule,
    NormRule,
)


class ScaledEmbeddingRule(EmbeddingRule):
    """Lookups of transformers whose result is multiplied by ``embed_scale``."""

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        scale = module.embed_scale
        assert isinstance(scale, float | int | Tensor)
        return super().uses(module, a, g * scale)


class PositionsRule(EmbeddingRule):
    """Bart's positions: a lookup ``offset`` rows further on, whose input `_positions` replaces."""

    one_row_for_all = True

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert a is not None
        offset = module.offset
        assert isinstance(offset, int)
        return super().uses(module, a + offset, g)


class VisionEmbeddingsRule(Rule):
    """ViT's class token and positions, ``(1, n, d)``, which are added to each image's patches."""

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert isinstance(module.dropout, nn.Dropout)
        if module.dropout.p and module.training:
            raise UnsupportedLayerError(
                f"ViT's embeddings have dropout at rate {module.dropout.p}, behind which their "
                "parameters are not seen; expected none: type model.dropout=0"
            )
        found = {"cls_token": g[:, :1], "position_embeddings": g}
        return {
            name: DirectUse(x.unsqueeze(1)) for name, x in found.items() if trains(module, name)
        }

    def needs_input(self, module: nn.Module) -> bool:
        return False


@dataclass(frozen=True)
class StandardisedUse(Use):
    """A weight that enters its convolution standardised, filter by filter (Qiao et al. 2019).

    A filter ``w`` of ``n`` numbers is used as ``u = scale (w - mean(w))``, where ``scale`` is
    ``1 / |w - mean(w)|``. If ``h`` is the gradient of a record with respect to the filter as used,
    then with respect to the filter as stored it is

        ``scale (h - mean(h) - <h, u> u)``,

    which is linear in ``h`` and the same map for all records, and whose squared length is
    ``scale^2 (|h|^2 - n mean(h)^2 - <h, u>^2)``. So the sum over records is taken first and mapped
    once, and the norms need two numbers per record and filter besides those of a convolution.

    Attributes:
        used: the use of the filters as used; formed gradients are ``(B, p, ...)``.
        unit: ``u``, of the weight's shape; zero for a filter so small that its scale is a constant.
        scale: ``(p,)``.
    """

    used: ConvUse | DirectUse
    unit: Tensor
    scale: Tensor

    def squared_norm(self) -> SquaredNorm:
        if isinstance(self.used, DirectUse):
            h, weights = self.used.gradients.flatten(2), self.scale.square()
            total = torch.linalg.vector_norm(h, dim=2).square() @ weights
            unit = self.unit.flatten(1)
            ones = torch.full_like(unit, unit.shape[1] ** -0.5)
            along = torch.bmm(h.transpose(0, 1), torch.stack((ones, unit), 2))
            removed = along.square().sum(2).t() @ weights
            return SquaredNorm(total - removed, total)
        scaled = self._scaled()
        norm = scaled.squared_norm()
        removed = scaled.filter_sums().square().sum(1) / self.unit[0].numel()
        # <h, u> is the inner product of g with the output that the filter u gives.
        removed += (scaled.convolve(self.unit) * scaled.g).sum((2, 3)).square().sum(1)
        value = torch.maximum(norm.value - removed, floor(scaled.bound()))
        return SquaredNorm(value, norm.scale)

    def bound(self) -> Tensor:
        if isinstance(self.used, DirectUse):
            return super().bound()
        return self._scaled().bound()

    def rows(self, index: Tensor) -> StandardisedUse:
        return replace(self, used=self.used.rows(index))

    def per_example(self) -> Tensor:
        return self._pulled_back(self.used.per_example())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._pulled_back(self.used.weighted_sum(weights))

    def without(self, dropped: Tensor) -> StandardisedUse:
        return replace(self, used=self.used.without(dropped))

    def cheapest_form(self, transient: bool) -> StandardisedUse:
        used = self.used.cheapest_form(transient)
        assert isinstance(used, ConvUse | DirectUse)
        return replace(self, used=used)

    def _scaled(self) -> ConvUse:
        assert isinstance(self.used, ConvUse)
        return replace(self.used, g=self.used.g * self.scale[:, None, None])

    def _pulled_back(self, used: Tensor) -> Tensor:
        """Return gradients of the stored filters, ``(..., p, ...)``, from those as used."""
        unit = self.unit.flatten(1)
        h = used.flatten(1 - self.unit.dim())
        h = h - h.mean(-1, keepdim=True) - (h * unit).sum(-1, keepdim=True) * unit
        return (h * self.scale[:, None]).view(used.shape)


class StandardisedConvRule(ConvRule):
    """A convolution whose module uses ``standardised(weight)`` in place of its weight.

    The module has ``eps``, and each filter ``w`` of ``n`` numbers is used as
    ``(w - mean(w)) / sqrt(max(n var(w), eps))`` (Brock et al. 2021, eq. 1; De et al. 2022).
    """

    def weight_use(self, module: nn.Module, use: ConvUse) -> Use:
        assert isinstance(module.weight, Tensor)
        assert isinstance(module.eps, float)
        filters = module.weight.detach().flatten(1)
        centred = filters - filters.mean(1, keepdim=True)
        squared = centred.square().sum(1)
        scale = squared.clamp(min=module.eps).rsqrt()
        # Below eps the scale does not depend on the filter, and nothing is lost along it.
        unit = centred * (scale * (squared >= module.eps))[:, None]
        return StandardisedUse(use, unit.view_as(module.weight), scale)


def llama_norm(module: nn.Module, a: Tensor) -> Tensor:
    """Normalise as transformers' Llama-type norms: in float32, whatever the input.

    What counts is the formula, ``weight * to_input_dtype(x / sqrt(mean(x^2) + variance_epsilon))``
    with ``x`` in float32; Gemma's, which multiplies by ``1 + weight``, is another.
    """
    epsilon = module.variance_epsilon
    assert isinstance(epsilon, float)
    x = a.float()
    return (x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()).to(a.dtype)


def t5_norm(module: nn.Module, a: Tensor) -> Tensor:
    """Normalise as T5's norms: the mean square is in float32, and not the product with it."""
    epsilon = module.variance_epsilon
    assert isinstance(epsilon, float)
    return a * (a.float().square().mean(-1, keepdim=True) + epsilon).rsqrt()


_SCALED = "transformers.models.bart.modeling_bart.BartScaledWordEmbedding"
_GEMMA_SCALED = "transformers.models.gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding"
_POSITIONS = "transformers.models.bart.modeling_bart.BartLearnedPositionalEmbedding"
_LLAMA_NORM = "transformers.models.llama.modeling_llama.LlamaRMSNorm"
_T5_NORM = "transformers.models.t5.modeling_t5.T5LayerNorm"

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "transformers.pytorch_utils.Conv1D": LinearRule(transposed=True),
        "transformers.models.falcon.modeling_falcon.FalconLinear": LinearRule(),
        _SCALED: ScaledEmbeddingRule(),
        _POSITIONS: PositionsRule(),
        _LLAMA_NORM: NormRule(llama_norm),
        _T5_NORM: NormRule(t5_norm),
        "transformers.models.vit.modeling_vit.ViTEmbeddings": VisionEmbeddingsRule(),
        "dpft.models.wrn.WeightStandardizedConv2d": StandardisedConvRule(),
    }
)


def copied(cls: type[nn.Module]) -> str | None:
    """Return the qualified name of the known class whose forward a class of transformers copies."""
    if not cls.__module__.startswith("transformers."):
        return None
    name, lookup = cls.__name__, cls.__bases__ == (nn.Embedding,)
    if lookup and name.endswith("ScaledWordEmbedding"):
        copies = (_SCALED, _GEMMA_SCALED)
        return _SCALED if any(_same_code(cls, one, "forward") for one in copies) else None
    if lookup and name.endswith("LearnedPositionalEmbedding"):
        return _POSITIONS if _same_code(cls, _POSITIONS, "forward") else None
    if name.endswith("Norm"):
        return next((k for k in (_LLAMA_NORM, _T5_NORM) if _same_code(cls, k, "forward")), None)
    return None


def _same_code(cls: type[nn.Module], known: str, *methods: str) -> bool:
    """Return whether methods of a class do what those of a known one do."""
    module, _, name = known.rpartition(".")
    other = getattr(importlib.import_module(module), name)
    return all(_code_of(getattr(cls, m, len)) == _code_of(getattr(other, m)) for m in methods)


def _code_of(function: Any) -> tuple[Any, ...]:
    """Return what a function does, but for names of local variables; empty for one in C."""
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else (code.co_code, code.co_consts, code.co_names, code.co_argcount)


# A decoder of Bart's kind looks up the positions ``(T,)``, and T5's attention the relative
# positions ``(T, T)``: of neither has a record a separate row, and the module around, which is
# most of the model, would have to be computed again for each record, without dropout. The same
# values with a row for each record are what the model adds to its hidden states or scores anyway.


def for_records(module: nn.Module) -> Change | None:
    """Return what gives a module arguments with a row for each record; None where it has them."""
    cls = type(module)
    if "forward" in vars(module) or not cls.__module__.startswith("transformers."):
        return None
    if copied(cls) == _POSITIONS:
        return _positions
    methods = ("forward", "compute_bias", "_relative_position_bucket")
    if hasattr(cls, "compute_bias") and getattr(module, "has_relative_attention_bias", False):
        t5 = "transformers.models.t5.modeling_t5.T5Attention"
        return _relative if _same_code(cls, t5, *methods) else None
    return None


def _positions(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], records: int
) -> Changed | None:
    """Give the positions themselves in place of the tokens, which are then not read."""
    names = ("input_ids", "past_key_values_length", "position_ids")
    given: dict[str, Any] = {"past_key_values_length": 0, "position_ids": None}
    given |= dict(zip(names, args, strict=False)) | kwargs
    places, before = given["position_ids"], given["past_key_values_length"]
    if places is None:
        length = given["input_ids"].shape[1]
        places = torch.arange(before, before + length, device=module.weight.device)
    if places.dim() != 1:
        return None
    return (places.expand(records, -1), before), {"position_ids": places}


def _relative(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], records: int
) -> Changed | None:
    """Give biases of all pairs of positions, ``(R, H, T, T)``, as T5 gives its later layers."""
    if len(args) != 1 or not trains(module.relative_attention_bias, "weight"):
        return None
    past = kwargs.get("past_key_values")  # a decoder makes an empty one, unless asked not to
    if kwargs.get("position_bias") is not None or (past is not None and past.get_seq_length()):
        return None
    places = torch.arange(args[0].shape[1], device=args[0].device)
    buckets = module._relative_position_bucket(
        places[None, :] - places[:, None],
        bidirectional=not module.is_decoder,
        num_buckets=module.relative_attention_num_buckets,
        max_distance=module.relative_attention_max_distance,
    )
    found: Tensor = module.relative_attention_bias(buckets.expand(records, -1, -1))
    return args, {**kwargs, "position_bias": found.permute(0, 3, 1, 2)}
