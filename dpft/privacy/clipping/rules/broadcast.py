"""Bare parameters that are broadcast over the batch: class tokens, position embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from dpft.privacy.clipping.rules.base import Rule, Use
from dpft.privacy.clipping.rules.uses import DirectUse


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
