"""The processes of one run, and every collective between them.

Each rank computes the same global draw from the key and takes its share of it; the sums are added
up once a step. Ranks agree before each collective that not all might reach, so that an error of
one ends all, and ranks that have drawn different batches never add them up.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from dpft.config.errors import ConfigError, RankError

T = TypeVar("T")
Pieces = Sequence[Sequence[int]]

# Numbers in one all-reduce: enough to hide its latency, few enough for a buffer beside the model.
_BUCKET = 1 << 24
# How long a rank waits for the others. A step of a large model with many microbatches takes
# minutes; a rank that died is noticed at once, by its connections.
TIMEOUT = timedelta(minutes=30)


def be_patient(mesh: DeviceMesh) -> None:
    """Let the groups of a mesh wait as long as that of all ranks: NCCL's own limit is shorter."""
    for group in mesh.get_all_groups():
        if dist.get_backend(group) in ("nccl", "gloo"):  # simulated groups have no time limit
            _set_pg_timeout(TIMEOUT, group)


class UnansweredError(RankError):
    """Another rank is gone.

    Args:
        error: what a collective raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"another rank does not answer ({' '.join(str(error).split())[:200]}); it was killed, "
            "or its machine is gone: see its messages. The same command continues from the last "
            "checkpoint"
        )


@contextmanager
def _connected() -> Iterator[None]:
    """Turn what a collective raises where another rank is gone into an UnansweredError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise UnansweredError(error) from error


class SingleProcess:
    """The processes of a run: here one, which shares nothing; `Replicas` and others are several.

    It has what the privacy core asks (`dpft.privacy.cohort.Cohort`) and what training asks.

    Attributes:
        rank, size, sharded: as of the privacy core.
        divided: whether no rank holds all that is trained.
        layout: how the ranks share the work, for the ledger's header: sums of another layout are
            rounded otherwise. Empty in one process.
        owners: by the name of a trained parameter, the first rank that holds it whole, where ranks
            hold different ones; else empty.
    """

    rank, size, sharded, divided = 0, 1, False, False
    layout: Mapping[str, Any] = MappingProxyType({})
    owners: Mapping[str, int] = MappingProxyType({})

    def place(self, model: nn.Module) -> None:
        """Divide the first rank's parameters over the ranks, in place, if the layout does.

        Before a clipper and an optimizer are made: parameters become others. The other ranks'
        values are not used.
        """

    def share(self, drawn: Sequence[T]) -> Sequence[T]:
        """Return this rank's part of what all have drawn; the parts are disjoint and complete."""
        return drawn

    def pieces(self, drawn: Sequence[int], cut: Callable[[Sequence[int]], Pieces]) -> Pieces:
        """Return this rank's part of a batch, cut into microbatches.

        Where ranks must keep in step it is filled up with microbatches of blanks
        (`dpft.privacy.shapes.BLANK`) to the number that the busiest rank has.
        """
        return cut(self.share(drawn))

    def gather(self, value: T) -> list[T]:
        """Return each rank's value, on every rank."""
        return [value]

    def from_first(self, value: T) -> T:
        """Return rank 0's value."""
        return value

    def whole(self, tensor: Tensor, name: str = "") -> Tensor:
        """Put the parts of a parameter or its gradient together; every rank must ask.

        Args:
            tensor: this rank's.
            name: of the parameter. Where ranks hold different ones the first rank gets its owner's,
                and the others keep their own.
        """
        return tensor

    @torch.no_grad()
    def spread(self, target: Tensor, whole: Tensor | None) -> None:
        """Copy the first rank's tensor into the target, or into each rank's part of it.

        Args:
            target: a parameter, or a tensor that is divided like one.
            whole: of the target's whole shape; None on the other ranks.
        """
        assert whole is not None
        target.copy_(whole)

    def meet(self, trouble: BaseException | None = None, word: str = "") -> None:
        """Wait for all ranks, and go on only if none has trouble and all have the same word.

        Args:
            trouble: why this rank cannot go on; it is raised here, and a RankError elsewhere.
            word: what all ranks must have computed alike, such as a digest of the draw.

        Raises:
            RankError: naming the rank that failed, or saying that ranks disagree.
        """
        if trouble is not None:
            raise trouble

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.agree([flag], "")[0]

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        """Return of each flag whether any rank has set it; all must have the same word."""
        return list(flags)

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        """Return this rank's part of a tensor, flattened, and where it begins in the whole."""
        return whole.view(-1), 0

    def prepare(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], by_autograd: bool
    ) -> None:
        """Refuse sharded parameters that cannot be summed exactly; asked where `sharded` alone."""
        raise AssertionError("each rank holds whole parameters")

    def scatter_sums(self, sums: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Add this rank's parts of the sums to ``.grad``; asked where `sharded` alone."""
        raise AssertionError("each rank holds whole parameters")


TrainingCohort = SingleProcess


class Replicas(SingleProcess):
    """Ranks that each hold a whole copy of the model (data parallel).

    Args:
        group: the ranks; None: all processes of the default group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        self.layout = MappingProxyType({"ranks": self.size})

    def share(self, drawn: Sequence[T]) -> Sequence[T]:
        # Strided: a file that is sorted by length gives every rank a fair share.
        return drawn[self.rank :: self.size]

    def gather(self, value: T) -> list[T]:
        held: list[Any] = [None] * self.size
        with _connected():
            dist.all_gather_object(held, value, group=self._group)
        return held

    def from_first(self, value: T) -> T:
        held: list[T] = [value]
        with _connected():
            dist.broadcast_object_list(held, src=0, group=self._group, device=self._device)
        return held[0]

    @torch.no_grad()
    def spread(self, target: Tensor, whole: Tensor | None) -> None:
        if whole is not None:
            target.copy_(whole)
        # A group of GPUs cannot send what lies on the CPU, such as Adam's count of steps.
        sent = target.detach().to(self._device)
        with _connected():
            dist.broadcast(sent, src=0, group=self._group)
        target.copy_(sent)

    def meet(self, trouble: BaseException | None = None, word: str = "") -> None:
        failed, alike = 0, True
        try:
            (failed,), alike = self._largest([0 if trouble is None else 1 + self.rank], word)
        except UnansweredError:
            if trouble is None:
                raise
        if trouble is not None:
            raise trouble
        if failed:
            raise RankError(
                f"rank {failed - 1} of {self.size} stopped at an error, so that this rank stops "
                "too: see the message of that rank"
            )
        self._check(alike)

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        largest, alike = self._largest([int(flag) for flag in flags], word)
        self._check(alike)
        return [flag > 0 for flag in largest]

    def _largest(self, numbers: Sequence[int], word: str) -> tuple[list[int], bool]:
        """Return the largest of each number on any rank, and whether all have the same word."""
        code = int.from_bytes(hashlib.sha256(word.encode()).digest()[:7], "big")
        # The largest of x and of -x: equal but for the sign if all ranks have one x.
        sent = torch.tensor([*numbers, code, -code], dtype=torch.int64, device=self._device)
        with _connected():
            dist.all_reduce(sent, op=dist.ReduceOp.MAX, group=self._group)
        *largest, code, negated = sent.tolist()
        return largest, code == -negated

    def _check(self, alike: bool) -> None:
        if not alike:
            raise RankError(
                f"rank {self.rank} of {self.size} has computed something else than another rank; "
                "expected the same on all: are code, settings, data and packages the same "
                "everywhere? Nothing of this step was released"
            )

    @torch.no_grad()
    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pending: list[Tensor] = []
        for tensor in tensors:
            pending.append(tensor)
            if sum(t.numel() for t in pending) >= _BUCKET:
                self._reduce(pending)
                pending = []
        self._reduce(pending)

    def _reduce(self, tensors: Sequence[Tensor]) -> None:
        """Reduce several tensors at once, in float32 or in what has more digits."""
        if not tensors:
            return
        if len(tensors) == 1 and tensors[0].dtype.itemsize >= 4 and tensors[0].is_contiguous():
            with _connected():
                dist.all_reduce(tensors[0], group=self._group)  # without a second copy of it
            return
        kind = torch.float32
        for tensor in tensors:
            kind = torch.promote_types(kind, tensor.dtype)
        flat = torch.cat([tensor.detach().flatten().to(kind) for tensor in tensors])
        with _connected():
            dist.all_reduce(flat, group=self._group)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


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


@contextmanager
def together(cohort: TrainingCohort, word: str = "") -> Iterator[None]:
    """Have all ranks go on behind what one does alone, or none; see `SingleProcess.meet`."""
    try:
        yield
    except Exception as trouble:
        # The others may be amid a collective of a sharded layer: they find that this one left.
        if not cohort.sharded:
            cohort.meet(trouble, word)
        raise
    cohort.meet(None, word)


def own_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor that may be divided."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()
