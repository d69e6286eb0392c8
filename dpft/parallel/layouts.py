"""From ``conf/parallel`` to the cohort of a run."""

from __future__ import annotations

import torch

from dpft.config.errors import ConfigError
from dpft.config.schema import Parallel
from dpft.parallel.cohort import Cohort, Replicas, SingleProcess, connect, launched


def join(device: torch.device, parallel: Parallel) -> Cohort:
    """The cohort of this process: all that torchrun started, in their layout, or this one.

    Args:
        device: where this rank computes.
        parallel: the layout.

    Raises:
        ConfigError: if so many ranks cannot be laid out like that.
    """
    size = launched()
    if size == 1:
        return SingleProcess()
    if parallel.name == "data":
        connect(device)
        return Replicas()
    if parallel.name == "pipeline":
        connect(device)
        from dpft.parallel.mesh import Pipelines

        return Pipelines(parallel.ranks, parallel.schedule or "1f1b", parallel.microbatches)
    shards = parallel.shards or size
    if size % shards:
        raise ConfigError(
            f"parallel.shards is {shards} with {size} processes; expected a number that divides "
            "them: each copy of the model is spread over as many"
        )
    connect(device)
    from torch.distributed.device_mesh import init_device_mesh

    from dpft.parallel.sharded import Shards

    if shards == size:
        return Shards(init_device_mesh(device.type, (size,)))
    return Shards(
        init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=("copy", "shard"))
    )
