"""The ranks of one run, and every collective between them.

Each rank draws the same batch from the key and takes its share of it; sums are reduced once a step.
Ranks agree before each collective that not all might reach, so that an error of one ends all, and
ranks that have drawn different batches never add them up.
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

from dpft.config.errors import RankError

T = TypeVar("T")
Pieces = Sequence[Sequence[int]]

# Numbers in one all-reduce: enough to hide its latency, few enough for a buffer next to the model.
_BUCKET = 1 << 24
# How long a rank waits for the others. A step of a large model with many microbatches takes
# minutes; a rank that died is noticed at once, by its connections.
TIMEOUT = timedelta(minutes=30)


class RankGoneError(RankError):
    """Another rank is gone, as the error of a collective shows."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"another rank does not answer ({' '.join(str(error).split())[:200]}); it was killed, "
            "or its machine is gone: see its messages. The same command continues from the last "
            "checkpoint"
        )


@contextmanager
def _collective() -> Iterator[None]:
    """Turn the error of a collective without another rank into a RankGoneError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RankGoneError(error) from error


class TrainingCohort:
    """The ranks of a run: here one; the layouts with several ranks are its subclasses.

    It has what `dpft.privacy.policies.Cohort` asks, and what training asks. Methods are
    collectives: every rank calls them, in the same order.

    Attributes:
        rank, size, sharded: as of the privacy core.
        divided: whether no rank holds all trained parameters.
        layout: how the ranks share the work, for the ledger's header: sums of another layout are
            rounded otherwise. Empty in one process.
        owners: the first rank that holds a trained parameter whole, by the parameter's name, where
            ranks hold different ones; else empty.
    """

    rank, size, sharded, divided = 0, 1, False, False
    layout: Mapping[str, Any] = MappingProxyType({})
    owners: Mapping[str, int] = MappingProxyType({})

    def place(self, model: nn.Module) -> None:
        """Divide the first rank's parameters over the ranks, in place, if the layout does.

        Called before a clipper and an optimizer are made, since parameters are replaced.
        """

    def share(self, drawn: Sequence[T]) -> Sequence[T]:
        """Return this rank's part of a draw that all ranks made; parts are disjoint."""
        return drawn

    def pieces(self, drawn: Sequence[int], cut: Callable[[Sequence[int]], Pieces]) -> Pieces:
        """Return this rank's part of a batch, cut into microbatches.

        Where ranks must keep in step, microbatches of padding examples
        (`dpft.privacy.sampling.BLANK`) are added up to the number that the busiest rank has.
        """
        return cut(self.share(drawn))

    def all_gather(self, value: T) -> list[T]:
        """Return each rank's value, on every rank."""
        return [value]

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value."""
        return value

    def whole(self, tensor: Tensor, name: str = "") -> Tensor:
        """Return a parameter, or its gradient, put together from the ranks' parts.

        Where ranks hold different parameters, the first rank gets that of this ``name`` from its
        owner, and the others keep their own tensor.
        """
        return tensor

    @torch.no_grad()
    def broadcast(self, target: Tensor, whole: Tensor | None) -> None:
        """Copy the first rank's tensor into the target, or into each rank's part of it.

        Args:
            target: a parameter, or a tensor that is divided like one.
            whole: of the target's whole shape; None on the other ranks.
        """
        assert whole is not None
        target.copy_(whole)

    def barrier(self, trouble: BaseException | None = None, word: str = "") -> None:
        """Wait for all ranks, and go on only if none has an error and all have the same word.

        Args:
            trouble: why this rank cannot go on; it is raised here, and a RankError elsewhere.
            word: a value that must be equal on all ranks, such as a digest of the draw.

        Raises:
            RankError: naming the rank that failed, or saying that ranks disagree.
        """
        if trouble is not None:
            raise trouble

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.agree([flag], "")[0]

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        """Return, for each flag, whether any rank has set it; raise as `barrier` for the word."""
        return list(flags)

    def own_slice(self, whole: Tensor) -> tuple[Tensor, int]:
        """Return this rank's part of a tensor, flattened, and its offset in the whole."""
        return whole.view(-1), 0

    def prepare(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], by_autograd: bool
    ) -> None:
        """Refuse sharded parameters that cannot be summed exactly; called if `sharded`."""
        raise AssertionError("each rank holds whole parameters")

    def scatter_sums(self, sums: Sequence[tuple[nn.Parameter, Tensor]]) -> None:
        """Add this rank's parts of the sums to ``.grad``; called if `sharded`."""
        raise AssertionError("each rank holds whole parameters")


class Replicas(TrainingCohort):
    """All processes of the default group, each with a whole copy of the model (data parallel)."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        self.layout = MappingProxyType({"ranks": self.size})

    def share(self, drawn: Sequence[T]) -> Sequence[T]:
        # Strided: a file that is sorted by length gives every rank a fair share.
        return drawn[self.rank :: self.size]

    def all_gather(self, value: T) -> list[T]:
        held: list[Any] = [None] * self.size
        with _collective():
            dist.all_gather_object(held, value)
        return held

    def broadcast_object(self, value: T) -> T:
        held: list[T] = [value]
        with _collective():
            dist.broadcast_object_list(held, src=0, device=self._device)
        return held[0]

    @torch.no_grad()
    def broadcast(self, target: Tensor, whole: Tensor | None) -> None:
        if whole is not None:
            target.copy_(whole)
        # A group of GPUs cannot send tensors on the CPU, such as Adam's count of steps.
        sent = target.detach().to(self._device)
        with _collective():
            dist.broadcast(sent, src=0)
        target.copy_(sent)

    def barrier(self, trouble: BaseException | None = None, word: str = "") -> None:
        failed, equal = 0, True
        try:
            (failed,), equal = self._largest([0 if trouble is None else 1 + self.rank], word)
        except RankGoneError:
            if trouble is None:
                raise
        if trouble is not None:
            raise trouble
        if failed:
            raise RankError(
                f"rank {failed - 1} of {self.size} stopped at an error, so that this rank stops "
                "too: see the message of that rank"
            )
        self._check(equal)

    def agree(self, flags: Sequence[bool], word: str) -> list[bool]:
        largest, equal = self._largest([int(flag) for flag in flags], word)
        self._check(equal)
        return [flag > 0 for flag in largest]

    def _largest(self, numbers: Sequence[int], word: str) -> tuple[list[int], bool]:
        """Return the largest of each number on any rank, and whether all have the same word."""
        code = int.from_bytes(hashlib.sha256(word.encode()).digest()[:7], "big")
        # The largest of x and of -x: equal but for the sign if all ranks have one x.
        sent = torch.tensor([*numbers, code, -code], dtype=torch.int64, device=self._device)
        with _collective():
            dist.all_reduce(sent, op=dist.ReduceOp.MAX)
        *largest, code, negated = sent.tolist()
        return largest, code == -negated

    def _check(self, equal: bool) -> None:
        if not equal:
            raise RankError(
                f"rank {self.rank} of {self.size} has computed something else than another rank; "
                "expected the same on all: are code, settings, data and packages the same "
                "everywhere? Nothing of this step was released"
            )

    @torch.no_grad()
    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        bucket: list[Tensor] = []
        for index, tensor in enumerate(tensors, start=1):
            bucket.append(tensor)
            if index < len(tensors) and sum(t.numel() for t in bucket) < _BUCKET:
                continue
            first = bucket[0]
            if len(bucket) == 1 and first.dtype.itemsize >= 4 and first.is_contiguous():
                with _collective():
                    dist.all_reduce(first)  # without a second copy of it
            else:
                kind = torch.float32  # or what has more digits
                for each in bucket:
                    kind = torch.promote_types(kind, each.dtype)
                flat = torch.cat([each.detach().flatten().to(kind) for each in bucket])
                with _collective():
                    dist.all_reduce(flat)
                parts = flat.split([each.numel() for each in bucket])
                for each, part in zip(bucket, parts, strict=True):
                    each.copy_(part.view_as(each))
            bucket = []


class Pipeline(Replicas):
    """Ranks that each hold one stage of the model, and go through the same records.

    Args:
        microbatches: how many are sent through the stages at a time; None: four for each rank.

    Attributes:
        broken: whether this rank stopped in the middle of a round. Its neighbours then wait for
            hidden states, no agreement can be reached, and they notice that this rank is gone.
    """

    divided = True

    def __init__(self, microbatches: int | None = None) -> None:
        super().__init__()
        self.broken = False
        self.microbatches = microbatches or 4 * self.size
        self.layout = MappingProxyType(
            {"ranks": self.size, "layout": "pipeline", "microbatches": self.microbatches}
        )

    def share(self, drawn: Sequence[T]) -> Sequence[T]:
        return drawn

    def barrier(self, trouble: BaseException | None = None, word: str = "") -> None:
        if self.broken and trouble is not None:
            raise trouble
        super().barrier(trouble, word)

    @torch.no_grad()
    def broadcast(self, target: Tensor, whole: Tensor | None) -> None:
        # A parameter of another rank is on the meta device here: a copy to it does nothing.
        buffer = torch.empty(target.shape, dtype=target.dtype, device=self._device)
        super().broadcast(buffer, whole)
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
    """Let all ranks leave this context, or none: an error of one is a RankError of the others."""
    try:
        yield
    except Exception as trouble:
        # The others may wait in a collective of a sharded layer: they notice that this one left.
        if not cohort.sharded:
            cohort.barrier(trouble, word)
        raise
    cohort.barrier(None, word)


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that may be divided."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()
