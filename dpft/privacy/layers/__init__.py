"""Layer rules: from a captured call to the per-example gradient of each parameter, unformed."""

from dpft.privacy.layers.base import GramCache, Rule, SquaredNorm, UnsupportedLayerError, Use
from dpft.privacy.layers.rules import RULES, find_rule, rule_names
from dpft.privacy.layers.uses import (
    DirectUse,
    EmbeddingUse,
    MatrixUse,
    exact_squared_norm,
    joint_per_example,
    joint_squared_norm,
)

__all__ = [
    "RULES",
    "DirectUse",
    "EmbeddingUse",
    "GramCache",
    "MatrixUse",
    "Rule",
    "SquaredNorm",
    "UnsupportedLayerError",
    "Use",
    "exact_squared_norm",
    "find_rule",
    "joint_per_example",
    "joint_squared_norm",
    "rule_names",
]
