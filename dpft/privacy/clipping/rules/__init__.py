"""Layer rules: from a captured call to the per-example gradient of each parameter, unformed."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import nn

from dpft.privacy.clipping.rules.interface import (
    Change,
    Changed,
    Family,
    Rule,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
)
from dpft.privacy.clipping.rules.layers import (
    ConvRule,
    EmbeddingRule,
    GroupNormRule,
    LinearRule,
    NormRule,
    layer_norm,
    rms_norm,
)
from dpft.privacy.clipping.rules.uses import DirectUse, EmbeddingUse, MatrixUse

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "torch.nn.modules.linear.Linear": LinearRule(),
        "torch.nn.modules.sparse.Embedding": EmbeddingRule(),
        "torch.nn.modules.conv.Conv2d": ConvRule(),
        "torch.nn.modules.normalization.LayerNorm": NormRule(layer_norm),
        "torch.nn.modules.normalization.GroupNorm": GroupNormRule(),
        "torch.nn.modules.normalization.RMSNorm": NormRule(rms_norm),
    }
)
"""The rules for layers of PyTorch, by qualified class name."""


class LayerRules:
    """The rule of each type of layer.

    Args:
        own: rules by qualified class name, which come before all others.
        families: rules for the layers of further libraries.
    """

    def __init__(
        self, own: Mapping[str, Rule] | None = None, families: Sequence[Family] = ()
    ) -> None:
        self._families = families
        self._rules = dict(RULES)
        for family in families:
            self._rules |= family.RULES
        self._rules |= own or {}

    def find(self, module: nn.Module) -> Rule | None:
        """Return the rule for ``module``, or None.

        A subclass inherits its parent's rule only while it keeps the parent's ``forward``: a
        subclass that computes something else needs another rule, and so does a module whose
        ``forward`` was replaced. A class that copies a known one has that one's rule.
        """
        cls = type(module)
        if "forward" in vars(module):
            return None
        for base in cls.__mro__:
            rule = self._rules.get(f"{base.__module__}.{base.__qualname__}")
            if rule is None:
                continue
            same = (
                getattr(cls, method, None) is getattr(base, method, None)
                for method in ("forward", "_conv_forward")
            )
            if all(same):
                return rule
            break
        names = (family.copied(cls) for family in self._families)
        return next((self._rules[name] for name in names if name in self._rules), None)

    def for_records(self, module: nn.Module) -> Change | None:
        """Return what gives a module arguments with a row for each record; None: it has them."""
        if "forward" in vars(module):
            return None
        changes = (family.for_records(module) for family in self._families)
        return next((change for change in changes if change is not None), None)

    def names(self) -> str:
        """List the layer types that have a rule, for error messages."""
        return ", ".join(sorted(name.rsplit(".", 1)[-1] for name in self._rules))


__all__ = [
    "RULES",
    "Change",
    "Changed",
    "DirectUse",
    "EmbeddingUse",
    "Family",
    "LayerRules",
    "MatrixUse",
    "Rule",
    "SquaredNorm",
    "UnsupportedLayerError",
    "Use",
]
