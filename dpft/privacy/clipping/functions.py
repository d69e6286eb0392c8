"""Clip functions: from a record's norm to the factor that its gradient is multiplied with."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


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

# A function from elsewhere is tried at these thresholds, and at norms from far below each to far
# above, of which many lie around it.
_THRESHOLDS = (1e-3, 1.0, 30.0)
_NORMS = torch.cat(
    [torch.zeros(1), torch.logspace(-8, 8, 129), torch.linspace(0.5, 2.0, 121), torch.ones(1)]
)


def own_function(function: ClipFunction, name: str) -> ClipFunction:
    """Return a clip function from elsewhere, held to its bound, once it was tried on a grid.

    Guarantee: a record's factor times its norm is at most the threshold, at every norm: where the
    function itself gives more, which the grid cannot rule out between its points, the factor is
    that of the bound. A factor follows from one norm alone, since the function is mapped over the
    records (`torch.func.vmap`) and never sees two.

    Raises:
        ValueError: if a factor is negative, not finite, or more than ``C/n`` anywhere on the grid;
            if the function cannot be mapped.
    """

    def mapped(norms: Tensor, threshold: float) -> Tensor:
        return torch.func.vmap(lambda norm: function(norm, threshold))(norms.clone())

    def bounded(norms: Tensor, threshold: float) -> Tensor:
        if not norms.numel():
            return norms.clone()
        factors = mapped(norms, threshold)
        return factors.nan_to_num(0.0).clamp(min=0.0).minimum(threshold / norms)

    if isinstance(torch.empty(0), FakeTensor):  # of a plan: it has shapes and no numbers
        return bounded
    expected = (
        "expected factors from 0 to threshold / norm, which follow from one norm and the threshold "
        "by tensor operations without branches on values"
    )
    for threshold in _THRESHOLDS:
        norms = _NORMS * threshold
        try:
            factors = mapped(norms, threshold)
            fine = (factors >= 0) & factors.isfinite() & (factors * norms <= threshold * 1.00001)
        except Exception as error:  # whatever another's function raises
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"clip function {name!r} failed for a norm: {type(error).__name__}: {first}; "
                f"{expected}"
            ) from error
        if factors.shape != norms.shape or not bool(fine.all()):
            raise ValueError(
                f"clip function {name!r} is not bounded, or gives no factor for each norm, at the "
                f"threshold {threshold:g}; {expected}"
            )
    return bounded
