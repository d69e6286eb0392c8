"""The scale of losses in float16, and why it changes nothing of the mechanism.

float16 has 11 significant bits, but no number above 65504, no normal one below 2^-14, and nothing
below 2^-24 but zero: output gradients of a record would vanish. So its loss is multiplied by ``K``
before the backward (Micikevicius et al. 2018; Li et al. 2022, appendix T). The appendix clips to
``K C``, adds ``K`` times the noise, and divides the noisy gradient by ``K``. Here each layer's
output gradient is divided by ``K`` as soon as it arrives, in float32, before its norm is taken:

1. The backward is linear: what arrives is ``K g``, but for rounding in float16 on its way.
2. ``K`` is a power of two, and float32 has 8 bits of exponent: to divide changes no digit. Numbers
   in float16 are multiples of 2^-24 and stay exact; float32 numbers below 2^-126 ``K`` may lose
   digits that are below 2^-149.
3. ``clip(K g, K C) = K clip(g, C)``, since ``min(1, K C / |K g|) = min(1, C / |g|)``, and noise of
   deviation ``K sigma C`` divided by ``K`` has deviation ``sigma C``: what the appendix releases is
   ``clip(g, C)`` summed, plus noise of deviation ``sigma C``. So is this, for any clip function,
   any groups, and thresholds that move; noise, ledger and accounting know nothing of the scale.

Guarantee: norms are taken of the same float32 numbers that are summed, so that what overflowed or
vanished on the way cannot make a record longer than its threshold. A record whose loss or gradient
is not finite has the clip factor 0 in the groups concerned. Whether it overflows follows from the
record, the weights and ``K``, and from no other record where shapes are fixed (`shapes`): one
record still changes the sum by one threshold at most. ``K`` is a setting, and stays. A scale that
follows overflows, as without privacy, would be a function of private records, and so would be a
step that is skipped for their sake: neither is noised, and no accountant counts it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST = 2.0**24

QUANTUM = 2.0**-24
"""Of float16: numbers on the way of a scaled gradient may be off by so much, however small."""


def check_scale(scale: float) -> float:
    """The scale of losses, if it is one.

    Raises:
        ValueError: if it is no power of two from 1 to `LARGEST`.
    """
    if not (1 <= scale <= LARGEST and math.frexp(scale)[0] == 0.5):
        raise ValueError(
            f"loss_scale is {scale}; expected a power of two from 1 to 2^24, such as 1024: "
            "dividing by it changes no digit"
        )
    return float(scale)


def unscaled(gradient: Tensor, scale: float) -> Tensor:
    """``gradient / scale`` in float32 or float64, in one pass; itself where there is no scale."""
    if scale == 1:
        return gradient
    kind = torch.promote_types(gradient.dtype, torch.float32)
    # A factor without dimensions would leave a tensor that has some in float16.
    shape = (1,) if gradient.dim() else ()
    return gradient * torch.full(shape, 1 / scale, dtype=kind, device=gradient.device)
