"""Which layer has which rule."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from torch import nn

from dpft.privacy.clipping.rules.base import Rule
from dpft.privacy.clipping.rules.code import code_of
from dpft.privacy.clipping.rules.conv import ConvRule
from dpft.privacy.clipping.rules.linear import EmbeddingRule, LinearRule, ScaledEmbeddingRule
from dpft.privacy.clipping.rules.norms import (
    GroupNormRule,
    InstanceNormRule,
    LayerNormRule,
    LlamaRMSNormRule,
    RMSNormRule,
    T5NormRule,
)
from dpft.privacy.clipping.rules.shared import PositionsRule, is_positions
from dpft.privacy.clipping.rules.standardised import StandardisedConvRule

_SCALED = "transformers.models.bart.modeling_bart.BartScaledWordEmbedding"
_POSITIONS = "transformers.models.bart.modeling_bart.BartLearnedPositionalEmbedding"
_LLAMA_NORM = "transformers.models.llama.modeling_llama.LlamaRMSNorm"
_T5_NORM = "transformers.models.t5.modeling_t5.T5LayerNorm"

# Keyed by qualified class name, so that a rule for a library's layer needs no import of it.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "torch.nn.modules.linear.Linear": LinearRule(),
        "transformers.pytorch_utils.Conv1D": LinearRule(transposed=True),
        "transformers.models.falcon.modeling_falcon.FalconLinear": LinearRule(),
        "torch.nn.modules.sparse.Embedding": EmbeddingRule(),
        _SCALED: ScaledEmbeddingRule(),
        _POSITIONS: PositionsRule(),
        "torch.nn.modules.conv.Conv1d": ConvRule(),
        "torch.nn.modules.conv.Conv2d": ConvRule(),
        "dpft.models.wrn.WeightStandardizedConv2d": StandardisedConvRule(),
        "torch.nn.modules.normalization.LayerNorm": LayerNormRule(),
        "torch.nn.modules.normalization.GroupNorm": GroupNormRule(),
        "torch.nn.modules.normalization.RMSNorm": RMSNormRule(),
        # All instance norms have the forward of this class.
        "torch.nn.modules.instancenorm._InstanceNorm": InstanceNormRule(),
        # Of most families of transformers as well, see `_is_norm`.
        _LLAMA_NORM: LlamaRMSNormRule(),
        _T5_NORM: T5NormRule(),
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
    if _SCALED in rules and _is_scaled_embedding(type(module)):
        return rules[_SCALED]
    if _POSITIONS in rules and is_positions(type(module)):
        return rules[_POSITIONS]
    for cls in type(module).__mro__:
        rule = rules.get(f"{cls.__module__}.{cls.__qualname__}")
        if rule is not None:
            return rule if _computes_as(module, cls) else None
    for known in (_LLAMA_NORM, _T5_NORM):
        if known in rules and _is_norm(type(module), known):
            return rules[known]
    return None


def _is_norm(cls: type[nn.Module], known: str) -> bool:
    """Whether a norm of transformers computes what another one does, Llama's or T5's.

    Each family has a class of its own, with its own copy of ``forward`` (140 of Llama's in 5.23) or
    another formula, such as Gemma's ``1 + weight``. The copy is known by its compiled code.
    """
    module, _, name = known.rpartition(".")
    if not (cls.__module__.startswith("transformers.") and cls.__name__.endswith("Norm")):
        return False
    return code_of(cls.forward) == code_of(getattr(importlib.import_module(module), name).forward)


def _is_scaled_embedding(cls: type[nn.Module]) -> bool:
    """Whether a lookup of transformers is that of Bart or Gemma, times ``embed_scale``."""
    if not (cls.__module__.startswith("transformers.") and issubclass(cls, nn.Embedding)):
        return False
    if not cls.__name__.endswith("ScaledWordEmbedding") or cls.__bases__ != (nn.Embedding,):
        return False
    bart = importlib.import_module("transformers.models.bart.modeling_bart")
    gemma = importlib.import_module("transformers.models.gemma3.modeling_gemma3")
    known = (bart.BartScaledWordEmbedding, gemma.Gemma3TextScaledWordEmbedding)
    return any(code_of(cls.forward) == code_of(other.forward) for other in known)


def _computes_as(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether ``module``'s class left alone what ``cls`` computes."""
    return all(
        getattr(type(module), method, None) is getattr(cls, method, None)
        for method in ("forward", "_conv_forward")
    )


def rule_names(rules: Iterable[str]) -> str:
    """The layer types that have a rule, for error messages."""
    return ", ".join(sorted(name.rsplit(".", 1)[-1] for name in rules))
