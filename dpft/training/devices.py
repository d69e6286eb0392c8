"""The device that a run is on, and what decides how its sums are rounded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from dpft.config.errors import ConfigError

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort


def device_of(name: str) -> torch.device:
    """Return the device that ``device=`` names; ``auto`` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but there is no GPU here; type device=cpu")
    own = os.environ.get("LOCAL_RANK")  # each process of torchrun has its own
    if name == "cuda" and own is not None:
        name = f"cuda:{own}"
    device = torch.device(name)
    if device.type == "cuda" and own is not None and device.index != int(own):
        raise ConfigError(
            f"device is {name!r} with torchrun, which would be one GPU for several processes; "
            "type device=cuda, for one each"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, and this machine has {torch.cuda.device_count()} GPUs, counted "
            "from 0; expected one of them, or as many processes as there are GPUs"
        )
    return device


def rounds_like(device: torch.device) -> dict[str, Any]:
    """Return what decides how sums are rounded, which must be equal when a step is repeated.

    On a CPU the ledger's digest of a step also shows other versions of torch; a GPU has no digest.
    """
    found: dict[str, Any] = {"device": device.type, "threads": torch.get_num_threads()}
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
    return found


def all_round_like(device: torch.device, cohort: TrainingCohort) -> dict[str, Any]:
    """Return `rounds_like` of the first rank, and of all others if any differs; a collective."""
    first, *others = cohort.all_gather(rounds_like(device))
    return {**first, "others": others} if any(other != first for other in others) else first
