"""Ranks in pipelines: some hold the stages of one copy of the model, others those of another."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from dpft.config.errors import ConfigError
from dpft.parallel.cohort import Replicas, be_patient

T = TypeVar("T")


class Pipelines(Replicas):
    """All processes of a run: pipelines of ``length`` ranks each, which share every batch.

    Neighbouring ranks are one pipeline, since they send the most.

    Args:
        length: ranks of a pipeline; None: all are one.
        schedule: one of `dpft.parallel.pipelined_sums.SCHEDULES`.
        microbatches: that a schedule sends at a time; None: four for each rank.

    Attributes:
        position: of this rank in its pipeline, from 0.
        peers: the ranks of this one's pipeline.
        copies: the ranks with the same stages in other pipelines; None: there is one pipeline.
        broken: whether this rank stopped inside a round, between others that wait for it: no
            agreement can be reached then, and the others notice that this rank is gone.

    Raises:
        ConfigError: if the ranks do not make whole pipelines.
    """

    divided = True

    def __init__(
        self, length: int | None = None, schedule: str = "1f1b", microbatches: int | None = None
    ) -> None:
        super().__init__()
        self.length = self.size if length is None else length
        if self.length < 2 or self.size % self.length:
            raise ConfigError(
                f"{self.size} processes in pipelines of {self.length}; expected pipelines of two "
                "processes or more, and whole ones: type parallel.length=N for an N that divides "
                f"{self.size}, or start another number of processes"
            )
        shape = (self.size // self.length, self.length)
        mesh = init_device_mesh(self._device.type, shape, mesh_dim_names=("data", "pipeline"))
        self.position = self.rank % self.length
        be_patient(mesh)
        self.peers = mesh.get_group("pipeline")
        self.copies = Replicas(mesh.get_group("data")) if shape[0] > 1 else None
        self.broken = False
        self.schedule = schedule
        self.microbatches = microbatches or 4 * self.length
        self.layout = MappingProxyType(
            {
                "ranks": self.size,
                "layout": "pipeline",
                "pipeline": self.length,
                "schedule": schedule,
                "microbatches": self.microbatches,
            }
        )

    def share(self, drawn: Sequence[T]) -> Sequence[T]:
        # All stages of a pipeline go through the same records.
        return drawn if self.copies is None else self.copies.share(drawn)

    def meet(self, trouble: BaseException | None = None, word: str = "") -> None:
        if self.broken and trouble is not None:
            raise trouble
        super().meet(trouble, word)

    @torch.no_grad()
    def spread(self, target: Tensor, whole: Tensor | None) -> None:
        # What another rank holds has no values here, and a copy to it does nothing.
        buffer = torch.empty(target.shape, dtype=target.dtype, device=self._device)
        super().spread(buffer, whole)
        target.copy_(buffer)

    @torch.no_grad()
    def whole(self, tensor: Tensor, name: str = "") -> Tensor:
        source = self.owners.get(name, 0)
        if source == 0 or self.rank not in (0, source):
            return tensor
        if self.rank == source:
            dist.send(tensor.detach().to(self._device).contiguous(), 0)
            return tensor
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        dist.recv(buffer, source)
        return buffer
