"""Fully sharded data parallel (FSDP2): each rank holds a part of every parameter and its state.

The clipper forms the sum of one parameter at a time, over this rank's records; a few of them are
reduced and scattered together, so that no rank ever holds all sums. FSDP's own reduction would come
before clipping; training without clipping uses it, and has it add up instead of averaging.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from dpft.parallel.cohort import Pieces, Replicas
from dpft.privacy import UnsupportedLayerError
from dpft.privacy.sampling import BLANK

# Renamed in torch 2.13.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Shards(Replicas):
    """Ranks that each hold a part of the model, and take a share of every batch."""

    sharded = divided = True

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self._mesh = mesh
        self.layout = MappingProxyType({"ranks": self.size, "layout": "fsdp"})

    def place(self, model: nn.Module) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        whole = {name: tensor.detach() for name, tensor in named} if self.rank == 0 else {}
        shard(model, self._mesh)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self.broadcast(tensor, whole.pop(name, None))

    def pieces(self, drawn: Sequence[int], cut: Callable[[Sequence[int]], Pieces]) -> Pieces:
        # A layer gathers its parameters from all ranks, so all run it equally often.
        shares = [cut(drawn[rank :: self.size]) for rank in range(self.size)]
        own, most = shares[self.rank], max(map(len, shares))
        return [*own, *[[BLANK]] * (most - len(own))]

    @torch.no_grad()
    def whole(self, tensor: Tensor, name: str = "") -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    @torch.no_grad()
    def broadcast(self, target: Tensor, whole: Tensor | None) -> None:
        if not isinstance(target, DTensor):
            super().broadcast(target, whole)
            return
        own, first = self.own_slice(target)
        received = torch.empty(target.shape, dtype=target.dtype, device=own.device)
        super().broadcast(received, whole)
        own.copy_(received.view(-1)[first : first + len(own)])

    def prepare(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], by_autograd: bool
    ) -> None:
        for name, parameter in parameters.items():
            if not isinstance(parameter, DTensor):
                if by_autograd:
                    raise UnsupportedLayerError(
                        f"parameter {name!r} is in no unit of FSDP; expected every trained one in "
                        "a unit: call fully_shard on the whole model, without ignored_params"
                    )
                continue
            if parameter.device_mesh.size() != self.size:
                raise UnsupportedLayerError(
                    f"parameter {name!r} is sharded over {parameter.device_mesh.size()} of "
                    f"{self.size} ranks: the others' records would be missing in its sum; expected "
                    "a mesh of all of them"
                )
            if parameter.placements != (Shard(0),):
                raise UnsupportedLayerError(
                    f"parameter {name!r} has placements {parameter.placements}; expected shards of "
                    "the first dimension alone: no shard_placement_fn, no copies of shards, and no "
                    "tensor parallelism"
                )
        if by_autograd:
            # Each setting is of one unit alone, and not of those within it.
            for unit in model.modules():
                if isinstance(unit, FSDPModule):
                    unit.set_gradient_divide_factor(1.0)
                    unit.set_force_sum_reduction_for_comms(True)

    @torch.no_grad()
    def scatter_sums(self, sums: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        whole: list[tuple[nn.Parameter, Tensor]] = []  # in no unit: each rank has all of it
        buckets: dict[Any, list[tuple[DTensor, Tensor]]] = {}
        for parameter, total in sums:
            if isinstance(parameter, DTensor):
                layout = parameter.device_mesh, parameter.placements, total.dtype
                buckets.setdefault(layout, []).append((parameter, total))
            else:
                whole.append((parameter, total))
        for bucket in buckets.values():
            _scatter(bucket)
        self.all_reduce([total for _, total in whole])
        for parameter, total in whole:
            _add(parameter, total)

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        if not isinstance(whole, DTensor):
            return whole.view(-1), 0
        # Along the first dimension alone, see `prepare`, a part is one stretch of the whole.
        first = first_row(len(whole), self.rank, self.size)
        return whole.to_local().view(-1), first * math.prod(whole.shape[1:])


def reshard(model: nn.Module) -> None:
    """Let go of whole parameters that the next forward would use though the weights moved."""
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def first_row(rows: int, rank: int, size: int) -> int:
    """Return where a rank's rows begin, as FSDP cuts a parameter: the last ranks have fewer."""
    return min(rank * -(-rows // size), rows)


def _scatter(sums: Sequence[tuple[DTensor, Tensor]]) -> None:
    """Reduce and scatter several parameters' sums."""
    mesh, size = sums[0][0].device_mesh, sums[0][0].device_mesh.size()
    widths = [first_row(len(total), 1, size) * total[0].numel() for _, total in sums]
    whole = sums[0][1].new_zeros(size, sum(widths))
    for (_, total), columns in zip(sums, whole.split(widths, 1), strict=True):
        for row, chunk in zip(columns, total.chunk(size), strict=False):
            row[: chunk.numel()] = chunk.flatten()
    own = whole.new_empty(sum(widths))
    _reduce_scatter(own, whole.view(-1), group=mesh.get_group())
    for (parameter, total), part in zip(sums, own.split(widths), strict=True):
        local = parameter.to_local().shape
        summed = DTensor.from_local(
            part[: local.numel()].view(local),
            mesh,
            parameter.placements,
            run_check=False,
            shape=total.shape,
            stride=parameter.stride(),
        )
        _add(parameter, summed)


def _add(parameter: Tensor, part: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = part
    else:
        parameter.grad.add_(part)


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """Shard a model in place: every element of its longest list of modules is a unit.

    Tied weights must be in one unit, so what is not in a block stays in the model's own.

    Args:
        model: transformer layers in a `torch.nn.ModuleList`, as in transformers.
        mesh: of all ranks; None: made here.
        options: of ``fully_shard``.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for block in max(lists, key=len, default=nn.ModuleList()):
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model
