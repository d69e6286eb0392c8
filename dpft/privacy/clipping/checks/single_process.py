"""One process, or a cohort: whatever else divides a batch among several is refused.

Without a cohort every process would clip its share by itself, and release it under the same noise
as the others: whoever sees two releases has their difference without any.
"""

from __future__ import annotations

import torch
from torch import nn

from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.cohort import Cohort

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_single_process(model: nn.Module | None = None, cohort: Cohort | None = None) -> None:
    """Refuse a model that is wrapped for several devices, and processes that are no cohort.

    Args:
        model: None: only processes are looked at.
        cohort: the processes that add up their sums; None: there is one.

    Raises:
        UnsupportedLayerError: naming what was found.
    """
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, _WRAPPERS):
            raise UnsupportedLayerError(
                f"{name or 'the model'} is a {type(module).__name__}, which divides batches or "
                "averages gradients by itself; expected the bare module: dpft divides batches and "
                "adds up sums"
            )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        if model is not None and (cohort is None or not cohort.sharded):
            _check_whole(model)
        size = distributed.get_world_size()
        if size > 1 and cohort is None:
            raise UnsupportedLayerError(
                f"this process is one of {size} (torch.distributed); expected a single one, or a "
                "cohort given to make_clipper: each would clip its own share and release it under "
                "the same noise as the others"
            )


def _check_whole(model: nn.Module) -> None:
    """Refuse a sharded model where no cohort of shards is told what to add up.

    Raises:
        UnsupportedLayerError: naming a parameter.
    """
    from torch.distributed.tensor import DTensor  # takes long to import, and few need it

    for name, parameter in model.named_parameters():
        if parameter.requires_grad and isinstance(parameter, DTensor):
            raise UnsupportedLayerError(
                f"parameter {name!r} is sharded over several processes; expected "
                "make_clipper(..., cohort=dpft.parallel.sharded.Shards()), which adds up sums of "
                "parts, or a model that is not sharded"
            )
