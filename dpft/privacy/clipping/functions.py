"""Clip functions: from a record's norm to the factor that its gradient is multiplied with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor


def abadi(norms: Tensor, threshold: float) -> Tensor:
    """``min(1, C/n)`` (Abadi et al. 2016): gradients shorter than ``C`` pass unchanged."""
    return (threshold / norms).clamp(max=1.0)


def automatic(norms: Tensor, threshold: float) -> Tensor:
    """``C/(n + 0.01)`` (Bu et al. 2023, eq. 4, whose ``C`` is 1): no gradient exceeds ``C``."""
    return threshold / (norms + 0.01)


# Named by `dpft.privacy.spec.CLIP_FUNCTIONS`.
ClipFunction = Callable[[Tensor, float], Tensor]
CLIP_FUNCTIONS: Mapping[str, ClipFunction] = MappingProxyType(
    {"abadi": abadi, "automatic": automatic}
)
