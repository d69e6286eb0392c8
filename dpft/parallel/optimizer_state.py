"""What an optimizer holds, whole for a checkpoint, and back to the ranks.

A checkpoint is the same file whatever the layout that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpft.parallel.cohort import Cohort


class _Sent(NamedTuple):
    """Stands for a tensor that is sent by itself."""

    shape: torch.Size
    dtype: torch.dtype


def whole_state(
    optimizer: torch.optim.Optimizer, cohort: Cohort, names: Sequence[str]
) -> dict[str, Any]:
    """``state_dict`` with whole tensors, of all parameters; every rank must ask.

    Args:
        optimizer: over the same parameters on every rank, of which it has moved those that it has.
        cohort: the ranks.
        names: of the parameters, in the optimizer's order.
    """
    state = optimizer.state_dict()
    if cohort.owners:
        return {**state, "state": _of_owners(state["state"], cohort, names)}
    kept = {
        index: {k: cohort.whole(v) if isinstance(v, Tensor) else v for k, v in held.items()}
        for index, held in state["state"].items()
    }
    return {**state, "state": kept}


def _of_owners(
    own: Mapping[int, Mapping[str, Any]], cohort: Cohort, names: Sequence[str]
) -> dict[int, dict[str, Any]]:
    """The states of the ranks that hold each parameter, on the first."""
    described = {
        index: {
            name: _Sent(value.shape, value.dtype)
            if isinstance(value, Tensor) and value.dim()
            else value
            for name, value in values.items()
        }
        for index, values in own.items()
    }
    kept: dict[int, dict[str, Any]] = {}
    for of_rank in cohort.gather(described):
        kept |= of_rank
    for index, values in sorted(kept.items()):
        for name, value in values.items():
            if isinstance(value, _Sent):
                held = own.get(index, {}).get(name)
                held = torch.empty(value.shape, dtype=value.dtype) if held is None else held
                values[name] = cohort.whole(held, names[index])
    return kept


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
