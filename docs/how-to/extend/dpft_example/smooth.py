"""A clip function: without the corner that ``min(1, C/n)`` has where the norm is the threshold."""

from torch import Tensor


def smooth(norms: Tensor, threshold: float) -> Tensor:
    """``C / sqrt(n^2 + C^2)``: times the norm it is always below ``C``."""
    return threshold / (norms.square() + threshold**2).sqrt()
