"""One process, one copy of the model: what divides a batch among several is refused.

Every process would clip its share by itself, and release it under the same noise as the others:
whoever sees two releases has their difference without any.
"""

from __future__ import annotations

import torch
from torch import nn

from dpft.privacy.clipping.rules import UnsupportedLayerError

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def check_single_process(model: nn.Module | None = None) -> None:
    """Refuse a model that is wrapped for several devices, and a group of several processes.

    Args:
        model: None: only processes are looked at.

    Raises:
        UnsupportedLayerError: naming what was found.
    """
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, _WRAPPERS):
            raise UnsupportedLayerError(
                f"{name or 'the model'} is a {type(module).__name__}, which divides batches or "
                "averages gradients by itself; expected the bare module: private training runs in "
                "one process, on one device"
            )
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size > 1:
            raise UnsupportedLayerError(
                f"this process is one of {size} (torch.distributed); expected a single one: each "
                "would clip its own share and release it under the same noise as the others"
            )
