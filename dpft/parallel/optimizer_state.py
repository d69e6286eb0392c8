"""What an optimizer holds, as tensors that a checkpoint keeps by name, and the few numbers beside.

A rank gives, and gets back, what it holds of the parameters that it moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpft.parallel.cohort import TrainingCohort, own_part


def taken_apart(
    optimizer: torch.optim.Optimizer, names: Sequence[str], cohort: TrainingCohort
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer; every rank must ask.

    Args:
        optimizer: over the same parameters on every rank, of which it has moved those that it has.
        names: of the parameters, in the optimizer's order.
        cohort: the ranks.

    Returns:
        This rank's tensors, by ``PARAMETER/NAME``; and plain data, the same on every rank.
    """
    state, parameters = optimizer.state_dict(), _parameters(optimizer)
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, held in state["state"].items():
        for name, value in held.items():
            if not isinstance(value, Tensor):
                values.setdefault(names[index], {})[name] = value
                continue
            if value.dim() and _is_divided(parameters[index]) and not _is_divided(value):
                raise AssertionError(
                    f"{name} of {names[index]} is not divided as the parameter is, so that each "
                    "rank may have another one"
                )
            tensors[f"{names[index]}/{name}"] = value
    if cohort.owners:  # each rank knows the parameters that it moves
        values = {name: held for each in cohort.gather(values) for name, held in each.items()}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]
    return tensors, {"groups": groups, "values": values}


def room_for(
    optimizer: torch.optim.Optimizer, names: Sequence[str], saved: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Tensors to be filled, divided and placed as the parameters are.

    Args:
        optimizer: as of `taken_apart`.
        names: likewise.
        saved: tensors of their type and whole shape, by ``PARAMETER/NAME``.
    """
    parameters, room = dict(zip(names, _parameters(optimizer), strict=True)), {}
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
    """Give an optimizer the state that `taken_apart` gave.

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


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_divided(tensor: Tensor) -> bool:
    return own_part(tensor) is not tensor
