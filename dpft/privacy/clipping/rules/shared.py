"""Lookups that transformers makes once for a whole batch, made for each record instead.

A decoder of Bart's kind looks up the positions ``(T,)``, and T5's attention the relative positions
``(T, T)``: of neither has a record a row of its own, and the module around, which is most of the
model, would have to be computed again for each record, without dropout. The same values with a row
for each record are what the model adds to its hidden states or its scores anyway.

Classes are known by their compiled code, since families have copies of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules.base import Use, trains
from dpft.privacy.clipping.rules.code import code_of
from dpft.privacy.clipping.rules.linear import EmbeddingRule

Changed = tuple[tuple[Any, ...], dict[str, Any]]
Change = Callable[[Any, tuple[Any, ...], dict[str, Any], int], Changed | None]
"""From a module, its call's arguments and the number of records: other arguments, or None."""


class PositionsRule(EmbeddingRule):
    """Bart's positions: a lookup ``offset`` rows further on, whose input `_positions` replaces."""

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert a is not None
        offset = module.offset
        assert isinstance(offset, int)
        return super().uses(module, a + offset, g)


def is_positions(cls: type[nn.Module]) -> bool:
    """Whether a table of positions of transformers is read as Bart's."""
    if not (cls.__module__.startswith("transformers.") and cls.__bases__ == (nn.Embedding,)):
        return False
    if not cls.__name__.endswith("LearnedPositionalEmbedding"):
        return False
    bart = importlib.import_module("transformers.models.bart.modeling_bart")
    return code_of(cls.forward) == code_of(bart.BartLearnedPositionalEmbedding.forward)


def for_records(module: nn.Module) -> Change | None:
    """What gives a module arguments with a row for each record; None where it has them."""
    cls = type(module)
    if "forward" in vars(module):
        return None
    if is_positions(cls):
        return _positions
    if not (cls.__module__.startswith("transformers.") and hasattr(cls, "compute_bias")):
        return None
    t5 = importlib.import_module("transformers.models.t5.modeling_t5").T5Attention
    methods = ("forward", "compute_bias", "_relative_position_bucket")
    alike = all(code_of(getattr(cls, m, len)) == code_of(getattr(t5, m)) for m in methods)
    return _relative if alike and getattr(module, "has_relative_attention_bias", False) else None


def _positions(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], records: int
) -> Changed | None:
    """The positions themselves in place of the tokens, which then nobody reads."""
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
    """Biases of all pairs of positions, ``(R, H, T, T)``, as T5 gives them to its later layers."""
    if len(args) != 1 or not trains(module.relative_attention_bias, "weight"):
        return None
    past = kwargs.get("past_key_values")  # a decoder makes an empty one, unless told not to
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
