"""Fully sharded data parallel (FSDP2): each rank holds a part of every parameter and its state.

``fully_shard`` puts a unit's whole parameters together for its forward and again for its backward.
The clipper forms the sum of one parameter at a time, over this rank's records; it is reduced and
scattered at once, so that no rank ever holds all sums. FSDP's own reduction of gradients is not
used: it averages, and would come before clipping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from dpft.parallel.cohort import Pieces, Replicas
from dpft.privacy.shapes import BLANK


class Shards(Replicas):
    """Ranks that each hold a part of the model, and take a share of every batch."""

    sharded = divided = True

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self._mesh = mesh
        shards = self.size if mesh is None else mesh.size(-1)
        self.layout = MappingProxyType({"ranks": self.size, "layout": "fsdp", "shards": shards})

    def place(self, model: nn.Module) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        whole = {name: tensor.detach() for name, tensor in named} if self.rank == 0 else {}
        shard(model, self._mesh)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self.spread(tensor, whole.pop(name, None))

    def pieces(self, drawn: Sequence[int], cut: Callable[[Sequence[int]], Pieces]) -> Pieces:
        # Whoever runs a layer takes part in putting its parameters together: all or none.
        shares = [cut(drawn[rank :: self.size]) for rank in range(self.size)]
        own, most = shares[self.rank], max(map(len, shares))
        return [*own, *[[BLANK]] * (most - len(own))]

    @torch.no_grad()
    def whole(self, tensor: Tensor, name: str = "") -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    def spread(self, target: Tensor, whole: Tensor | None) -> None:
        if not isinstance(target, DTensor):
            super().spread(target, whole)
            return
        own, first = self.own_slice(target)
        received = torch.empty(target.shape, dtype=target.dtype, device=own.device)
        super().spread(received, whole)
        own.copy_(received.view(-1)[first : first + len(own)])

    @torch.no_grad()
    def scatter_sum(self, parameter: nn.Parameter, total: Tensor) -> None:
        if not isinstance(parameter, DTensor):  # too small to be worth sharding, or left out
            dist.all_reduce(total, group=self._group)
            part: Tensor = total
        else:
            mesh = parameter.device_mesh
            whole = DTensor.from_local(total, mesh, [Partial()] * mesh.ndim, run_check=False)
            part = whole.redistribute(placements=parameter.placements)
        if parameter.grad is None:
            parameter.grad = part
        else:
            parameter.grad.add_(part)

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        if not isinstance(whole, DTensor):
            return whole.view(-1), 0
        own = whole.to_local()
        _, offset = compute_local_shape_and_global_offset(
            whole.shape, whole.device_mesh, whole.placements
        )
        # Along the first dimension alone a part is one stretch of the flattened whole.
        if any(offset[1:]) or own.shape[1:] != whole.shape[1:]:
            raise ValueError(
                f"placements {whole.placements}; expected shards of the first dimension"
            )
        first = offset[0] * math.prod(whole.shape[1:]) if offset else 0
        return own.view(-1), first


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """Shard a model in place: every block of its layers is a unit, and the rest is one.

    Tied weights must be in one unit, so what is not in a block stays in the model's own.

    Args:
        model: transformer layers in a `torch.nn.ModuleList`, as in transformers.
        mesh: of the ranks; None: all of them. Two dimensions: copies, and shards within each.
        options: of ``fully_shard``.
    """
    for block in blocks(model):
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def blocks(model: nn.Module) -> Iterable[nn.Module]:
    """The repeated layers of a model: the elements of its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=nn.ModuleList())
