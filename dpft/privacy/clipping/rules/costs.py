"""Which form a matrix's per-example norms take: from Gram matrices, or from the gradients.

For one record with ``T`` positions and a ``(p, d)`` weight, the Gram form (Li et al. 2022, eq. 2)
multiplies ``T^2 (p + d)`` times and holds ``2 T^2`` numbers; forming the gradient multiplies
``T p d`` times and holds ``p d`` (Bu et al. 2023, section 3). A gradient that has been formed also
serves the weighted sum, which then needs no matrix product of its own.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

# Moving one number to memory and back costs about as much as this many multiplications.
MULTIPLICATIONS_PER_NUMBER = 40

# Numbers that may be formed where they are freed at once: 2**26 floats are 256 MiB.
MAX_TRANSIENT_NUMEL = 2**26

# Numbers formed at once where a norm is computed in pieces: 2**24 floats are 64 MiB, small beside a
# microbatch's activations.
PIECE = 2**24


class Form(Enum):
    """How norms are computed, and what is kept for the weighted sum."""

    GRAM = "gram"  # norms from Gram matrices; a and g are kept
    KEEP = "formed, kept"  # gradients are formed, and kept in place of a and g
    DROP = "formed, dropped"  # gradients are formed piecewise for the norms; a and g are kept


@lru_cache(maxsize=4096)
def choose_form(
    batch: int, length: int, p: int, d: int, *, transient: bool, halved: bool = False
) -> Form:
    """The cheapest form for ``batch`` records, by multiplications, with memory as the limit.

    Args:
        batch: records ``B``.
        length: positions ``T``.
        p: outputs.
        d: inputs.
        transient: whether formed gradients would be freed at once.
        halved: whether ``a`` and ``g`` are in half precision, and gradients would be in float32.
    """
    if length == 1 or batch == 0:
        return Form.GRAM
    gradient, held = p * d, length * (p + d)
    gram_time = length * length * (p + d)
    # Written once and read twice, where the Gram form reads what is warm.
    keep_time = 3 * MULTIPLICATIONS_PER_NUMBER * gradient if batch > 1 else gradient
    drop_time = length * gradient + MULTIPLICATIONS_PER_NUMBER * gradient
    fits = batch == 1 or gradient <= held or (transient and batch * gradient <= MAX_TRANSIENT_NUMEL)
    times = {Form.GRAM: gram_time, Form.DROP: drop_time}
    if fits:
        times[Form.KEEP] = keep_time
        if halved:  # gradients that are kept are summed in float32, without an allowance
            del times[Form.DROP]
    if batch * 2 * length * length > max(MAX_TRANSIENT_NUMEL, batch * gradient):
        del times[Form.GRAM]  # two T by T matrices would not fit where the gradient does
    return min(times, key=times.__getitem__)
