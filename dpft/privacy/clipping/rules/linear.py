"""Rules for linear layers, tables of embeddings, and bare parameters that are broadcast."""

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules.base import Rule, UnsupportedLayerError, Use, sequence, trains
from dpft.privacy.clipping.rules.uses import DirectUse, EmbeddingUse, MatrixUse


class LinearRule(Rule):
    """``nn.Linear``: weight ``(p, d)``, input ``(B, ..., d)``, output gradient ``(B, ..., p)``.

    With ``transposed`` the weight is stored as ``(d, p)``: GPT-2's ``Conv1D``.
    """

    sums_over_positions = True
    keeps_halves = True

    def __init__(self, transposed: bool = False) -> None:
        self.transposed = transposed

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        g = sequence(g)
        uses: dict[str, Use] = {}
        if trains(module, "weight"):
            assert a is not None
            uses["weight"] = MatrixUse(sequence(a), g, self.transposed)
        if trains(module, "bias"):
            uses["bias"] = DirectUse(g.sum(1, dtype=torch.promote_types(g.dtype, torch.float32)))
        return uses

    def needs_input(self, module: nn.Module) -> bool:
        return trains(module, "weight")


class EmbeddingRule(Rule):
    """``nn.Embedding``: indices ``(B, ...)``, output gradient ``(B, ..., d)``."""

    sums_over_positions = True

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert isinstance(module, nn.Embedding)
        assert a is not None
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise UnsupportedLayerError(
                "Embedding with max_norm, scale_grad_by_freq or sparse=True has gradients that "
                "depend on the whole batch; expected all three at their defaults"
            )
        ids, g = a.flatten(1), g.flatten(1, -2)
        if module.padding_idx is not None:
            g = g.masked_fill((ids == module.padding_idx)[:, :, None], 0)
        use = EmbeddingUse(ids, g, module.num_embeddings)
        # No larger than g: a table of relative positions is asked for all pairs of positions.
        small = module.num_embeddings <= ids.shape[1]
        return {"weight": DirectUse(use.per_example(), owned=True) if small else use}


class ScaledEmbeddingRule(EmbeddingRule):
    """Lookups of transformers whose result is multiplied by ``embed_scale``."""

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        scale = module.embed_scale
        assert isinstance(scale, float | int | Tensor)
        return super().uses(module, a, g * scale)


class BroadcastRule(Rule):
    """A parameter of shape ``(1, ...)`` that a module owns and broadcasts over its records.

    While the module runs, each record sees a row of its own, ``(B, ...)``, an expanded view. The
    gradient ``g`` of that view is the per-example gradient. A module that does something else with
    the parameter than to broadcast it is found by the check against autograd.
    """

    def __init__(self, local: str) -> None:
        self.local = local

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        return {self.local: DirectUse(g.unsqueeze(1))}

    def needs_input(self, module: nn.Module) -> bool:
        return False
