"""Layer rules: from a captured call to the per-example gradient of each parameter, unformed."""

from dpft.privacy.clipping.rules.base import (
    GramCache,
    Rule,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
)
from dpft.privacy.clipping.rules.registry import RULES, find_rule, rule_names
from dpft.privacy.clipping.rules.uses import (
    DirectUse,
    EmbeddingUse,
    MatrixUse,
    exact_squared_norm,
    joint_bound,
    joint_per_example,
    joint_rounding,
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
    "joint_bound",
    "joint_per_example",
    "joint_rounding",
    "joint_squared_norm",
    "rule_names",
]
