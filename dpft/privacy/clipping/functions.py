"""Clip functions: from a record's norm to the factor that its gradient is multiplied with."""

from __future__ import annotations

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

# A function of somebody else's is tried at these thresholds, and at norms from far below each to
# far above, of which many lie around it.
_THRESHOLDS = (1e-3, 0.1, 1.0, 30.0)
_NORMS = torch.cat(
    [torch.zeros(1), torch.logspace(-8, 8, 129), torch.linspace(0.5, 2.0, 121), torch.ones(1)]
).double()


def own_function(function: ClipFunction, name: str) -> ClipFunction:
    """A clip function from elsewhere, once it was tried on a grid, and held to its bound.

    Guarantee: of what is returned, a record's factor times its norm is at most the threshold, at
    every norm: where the function itself gives more, which the grid cannot rule out between its
    points, the factor is that of the bound. A factor follows from one norm alone, since the
    function is mapped over the records (`torch.func.vmap`) and never sees two.

    Args:
        function: from norms ``(B,)`` and the threshold ``C`` to factors ``(B,)``.
        name: for errors.

    Raises:
        ValueError: if a factor is negative, not finite, or more than ``C/n`` anywhere on the grid,
            or depends on other norms or on earlier calls; if the function cannot be mapped.
    """

    def bounded(norms: Tensor, threshold: float) -> Tensor:
        if not norms.numel():
            return norms.clone()
        factors = torch.func.vmap(lambda norm: function(norm, threshold))(norms.clone())
        return factors.nan_to_num(0.0).clamp(min=0.0).minimum(threshold / norms)

    if isinstance(torch.empty(0), FakeTensor):  # of a plan: it has shapes and no numbers
        return bounded
    for dtype, slack in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        for threshold in _THRESHOLDS:
            norms = (_NORMS * threshold).to(dtype)
            _check_factors(function, name, norms, threshold, slack)
    return bounded


def _check_factors(
    function: ClipFunction, name: str, norms: Tensor, threshold: float, slack: float
) -> None:
    wrong = f"clip function {name!r}"
    expected = (
        "expected factors from 0 to threshold / norm, so that no record contributes more than the "
        "threshold"
    )
    try:
        factors = function(norms.clone(), threshold)
        # One norm at a time, and in another order: what it has seen before must not matter.
        alone = torch.func.vmap(lambda norm: function(norm, threshold))(norms.flip(0)).flip(0)
    except Exception as error:  # whatever another's function raises
        said = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{wrong} failed for norms of shape {tuple(norms.shape)}, or for one of them alone: "
            f"{type(error).__name__}: {said}; expected tensor operations without branches on values"
        ) from error
    if not isinstance(factors, Tensor) or factors.shape != norms.shape:
        got = tuple(factors.shape) if isinstance(factors, Tensor) else type(factors).__name__
        raise ValueError(f"{wrong} gives {got} for norms of shape {tuple(norms.shape)}; {expected}")
    fine = (factors >= 0) & factors.isfinite() & (factors * norms <= threshold * (1 + slack))
    if not bool(fine.all()):
        norm, factor = (float(x[~fine][0]) for x in (norms, factors))
        raise ValueError(
            f"{wrong} is not bounded: it gives {factor:.4g} for a norm of {norm:.4g} and a "
            f"threshold of {threshold:g}, a contribution of {factor * norm:.4g}; {expected}"
        )
    if not torch.allclose(factors, alone, rtol=1e-4, atol=0):
        raise ValueError(
            f"{wrong} gives a norm another factor by itself than among others, or than before; "
            "expected a factor that follows from one norm and the threshold alone"
        )
