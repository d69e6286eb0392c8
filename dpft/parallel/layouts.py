"""From ``conf/parallel`` to the cohort of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpft.config.errors import ConfigError
from dpft.config.schema import Parallel
from dpft.parallel.cohort import Replicas, SingleProcess, TrainingCohort
from dpft.parallel.joining import connected
from dpft.parallel.launch import launched


@contextmanager
def joined(device: torch.device, parallel: Parallel) -> Iterator[TrainingCohort]:
    """The cohort of this process: all that torchrun started, in their layout, or this one.

    Args:
        device: where this rank computes.
        parallel: the layout.

    Raises:
        ConfigError: if so many ranks cannot be laid out like that.
        RankError: if they do not find each other, have unlike layouts, or another one leaves.
    """
    size = launched()
    shards = parallel.shards or size
    if size % shards:
        raise ConfigError(
            f"parallel.shards is {shards} with {size} processes; expected a number that divides "
            "them: each copy of the model is spread over as many"
        )
    if size == 1:
        yield SingleProcess()
        return
    with connected(device):
        Replicas().meet(word=f"{parallel}")  # of another layout a rank would wait for other groups
        match parallel.name:
            case "data":
                yield Replicas()
            case "fsdp":
                yield _sharded(device, size, shards)
            case "pipeline":
                yield _pipelines(parallel)


def _sharded(device: torch.device, size: int, shards: int) -> TrainingCohort:
    from torch.distributed.device_mesh import init_device_mesh

    from dpft.parallel.cohort import be_patient
    from dpft.parallel.sharded import Shards

    if shards == size:
        return Shards(init_device_mesh(device.type, (size,)))
    names = ("copy", "shard")
    mesh = init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=names)
    be_patient(mesh)
    return Shards(mesh)


def _pipelines(parallel: Parallel) -> TrainingCohort:
    from dpft.parallel.mesh import Pipelines

    return Pipelines(parallel.length, parallel.schedule or "1f1b", parallel.microbatches)
