"""What an optimizer holds, whole for a checkpoint, and back to the ranks.

A checkpoint is the same file whatever the layout that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpft.parallel.cohort import Cohort


class _Sent(NamedTuple):
    """Stands for a tensor that is sent by itself."""

    shape: torch.Size
    dtype: torch.dtype


def whole_state(optimizer: torch.optim.Optimizer, cohort: Cohort) -> dict[str, Any]:
    """``state_dict`` with whole tensors; every rank must ask."""
    state = optimizer.state_dict()
    kept = {
        index: {k: cohort.whole(v) if isinstance(v, Tensor) else v for k, v in held.items()}
        for index, held in state["state"].items()
    }
    return {**state, "state": kept}


def spread_state(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None, cohort: Cohort
) -> None:
    """Load on every rank what `whole_state` gave.

    Args:
        optimizer: over the same parameters in the same order.
        state: on the first rank; None on the others.
        cohort: the ranks.
    """
    tensors: dict[tuple[int, str], Tensor] = {}
    skeleton: dict[str, Any] = {}
    if state is not None:
        held = {index: dict(values) for index, values in state["state"].items()}
        for index, values in held.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.dim():
                    tensors[index, name] = value
                    values[name] = _Sent(value.shape, value.dtype)
        skeleton = {**state, "state": held}
    skeleton = cohort.from_first(skeleton)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in skeleton["state"].items():
        parameter = parameters[index]
        for name, value in values.items():
            if not isinstance(value, _Sent):
                continue
            if value.shape == parameter.shape:  # divided as the parameter is
                target = torch.zeros_like(parameter, dtype=value.dtype, requires_grad=False)
            else:
                target = torch.zeros(value.shape, dtype=value.dtype, device=parameter.device)
            cohort.spread(target, tensors.get((index, name)))
            values[name] = target
    optimizer.load_state_dict(skeleton)
