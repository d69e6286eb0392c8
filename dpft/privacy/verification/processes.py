"""No other process shares a batch, but those of a cohort."""

import torch
from torch import nn

from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.cohort import Cohort


def check_single_process(model: nn.Module | None = None, cohort: Cohort | None = None) -> None:
    """Refuse a model that is wrapped for several devices, and processes that are no cohort."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, wrappers):
            raise UnsupportedLayerError(
                f"{name or 'the model'} is a {type(module).__name__}, which divides batches or "
                "averages gradients by itself; expected the bare module: dpft divides batches and "
                "adds up sums"
            )
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if model is not None and (cohort is None or not cohort.sharded):
        from torch.distributed.tensor import DTensor  # takes long to import, and few need it

        for name, parameter in model.named_parameters():
            if parameter.requires_grad and isinstance(parameter, DTensor):
                raise UnsupportedLayerError(
                    f"parameter {name!r} is sharded over several processes; expected "
                    "make_clipper(..., cohort=dpft.parallel.sharded.Shards()), which adds up sums "
                    "of parts, or a model that is not sharded"
                )
    size = distributed.get_world_size()
    if size > 1 and cohort is None:
        raise UnsupportedLayerError(
            f"this process is one of {size} (torch.distributed); expected a single one, or a "
            "cohort given to make_clipper: each would clip its own share and release it under the "
            "same noise as the others"
        )
