"""Products in full float32, whatever the process allows elsewhere.

TF32 (by default for convolutions on a GPU) and ``torch.set_float32_matmul_precision("medium")``
round the factors of a product to 11 or 8 bits. A norm is then that of another gradient than the one
that is summed, and where a record's gradient cancels over its positions the two may have nothing in
common: clipping would let any multiple of the threshold through.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_REDUCED = ("tf32", "bf16")


def _backends() -> tuple[Any, ...]:
    b: Any = torch.backends
    return b.cuda.matmul, b.cudnn.conv, b.mkldnn.matmul, b.mkldnn.conv


@contextmanager
def full_precision() -> Iterator[None]:
    """Within this context float32 products are rounded once, to float32."""
    changed = [(b, b.fp32_precision) for b in _backends() if b.fp32_precision in _REDUCED]
    for backend, _ in changed:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, before in changed:
            backend.fp32_precision = before
