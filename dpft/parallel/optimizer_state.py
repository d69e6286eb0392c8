"""The state of an optimizer, as tensors that a checkpoint keeps by name and a few numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpft.parallel.cohort import TrainingCohort


def taken_apart(
    optimizer: torch.optim.Optimizer, names: Sequence[str], cohort: TrainingCohort
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return this rank's tensors by ``PARAMETER/NAME``, and plain data that all ranks share.

    Every rank must ask.

    Args:
        optimizer: over the same parameters on every rank, of which it has moved those that it has.
        names: of the parameters, in the optimizer's order.
        cohort: the ranks.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, held in state["state"].items():
        for name, value in held.items():
            if not isinstance(value, Tensor):
                values.setdefault(names[index], {})[name] = value
                continue
            tensors[f"{names[index]}/{name}"] = value
    if cohort.owners:  # each rank knows the parameters that it moves
        values = {name: held for each in cohort.gather(values) for name, held in each.items()}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]
    return tensors, {"groups": groups, "values": values}


def room_for(
    optimizer: torch.optim.Optimizer, names: Sequence[str], saved: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Make tensors to be filled, divided and placed as the parameters are.

    Args:
        optimizer: as of `taken_apart`.
        names: likewise.
        saved: tensors of their type and whole shape, by ``PARAMETER/NAME``.
    """
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameters, room = dict(zip(names, moved, strict=True)), {}
    for key, like in saved.items():
        parameter = parameters[key.rpartition("/")[0]]
        if like.dim() and like.shape == parameter.shape:
            room[key] = torch.zeros_like(parameter, dtype=like.dtype, requires_grad=False)
        else:  # a single number is in main memory, as a count of steps is
            device = parameter.device if like.dim() else torch.device("cpu")
            room[key] = torch.zeros(like.shape, dtype=like.dtype, device=device)
    return room


def put_together(
    optimizer: torch.optim.Optimizer,
    names: Sequence[str],
    own: Collection[str],
    tensors: Mapping[str, Tensor],
    rest: Mapping[str, Any],
) -> None:
    """Give an optimizer the state that `taken_apart` returned.

    Args:
        optimizer: as of `taken_apart`.
        names: likewise.
        own: of these, the parameters that this rank holds.
        tensors: this rank's, by ``PARAMETER/NAME``.
        rest: the plain data.
    """
    state = {name: dict(held) for name, held in rest["values"].items() if name in own}
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition("/")
        state.setdefault(name, {})[kind] = tensor
    groups = optimizer.state_dict()["param_groups"]
    groups = [
        {**told, "params": g["params"]} for told, g in zip(rest["groups"], groups, strict=True)
    ]
    found = {index: state[name] for index, name in enumerate(names) if name in state}
    optimizer.load_state_dict({"state": found, "param_groups": groups})
