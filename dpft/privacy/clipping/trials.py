"""Forwards for comparison: what they draw is given back, and how near they must come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

# By how much of its norm a record's output may differ when it is computed alone.
_ROUNDING = 1e-3
_HALF_ROUNDING = 5e-2


def random_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Of the generators that a module which is given these tensors draws from."""
    devices = sorted({x.get_device() for x in tensors if x.is_cuda})
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def close(y: Tensor, expected: Tensor) -> bool:
    """Whether rounding explains the difference, where ``expected`` is finite."""
    if not y.is_floating_point():
        return True
    allowed = _HALF_ROUNDING if y.dtype.itemsize < 4 else _ROUNDING
    whole = expected.double().where(expected.isfinite(), 0)
    difference = (y.double() - whole).where(expected.isfinite(), 0).norm()
    return bool(difference <= allowed * whole.norm())


@contextmanager
def random_state_kept(*tensors: Tensor) -> Iterator[None]:
    """Within this context what is drawn is drawn again afterwards."""
    devices = sorted({x.get_device() for x in tensors if x.is_cuda})
    with torch.random.fork_rng(devices):
        yield
