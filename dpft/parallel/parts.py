"""The tensors of a checkpoint, by torch.distributed.checkpoint: each rank writes and reads its own.

That module plans which rank writes which piece, each piece once, and which pieces a rank needs that
loads them, in whatever layout. Here each rank's pieces lie one behind the other in a file of plain
numbers, with a table of plain data: torch's own table is a pickle, which may run code.
"""

import hashlib
import math
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from dpft.config.errors import RankError
from dpft.parallel.cohort import TrainingCohort, UnansweredError


class Written(NamedTuple):
    """What was written: SHA-256 and size of each file by name, and where the pieces of tensors lie.

    Of each tensor ``dtype``, ``size`` and ``pieces``: where each begins in it (``offsets``), its
    ``sizes``, its ``file``, and where it begins there (``at``).
    """

    files: dict[str, Any]
    tensors: dict[str, Any]


def write(folder: Path, tensors: Mapping[str, Tensor], cohort: TrainingCohort) -> Written:
    """Write what the ranks hold, durably, and return what was written on the first rank.

    Every rank must ask, and none holds more than before.

    Args:
        folder: empty, the same on every rank that holds something of its own.
        tensors: by name. Parts of one tensor have its name on every rank; copies are written once.
        cohort: the ranks. Where they hold copies of everything, the first one writes.

    Raises:
        OSError: on the rank whose file could not be written; on the others a RankError names it.
    """
    alone = not cohort.divided
    if alone and cohort.rank:
        return Written({}, {})
    writer = _Writer(folder / f"part-{cohort.rank:05d}")
    planner = DefaultSavePlanner(flatten_state_dict=False)
    with _reported(cohort):
        save(dict(sorted(tensors.items())), storage_writer=writer, planner=planner, no_dist=alone)
    files = [writer.facts] if alone else cohort.gather(writer.facts)
    return Written({name: facts for each in files for name, facts in each.items()}, writer.tensors)


def read(
    folder: Path, written: Mapping[str, Any], targets: Mapping[str, Tensor], cohort: TrainingCohort
) -> None:
    """Fill tensors, or this rank's parts of them; every rank must ask.

    Args:
        folder: where the files lie.
        written: see `Written.tensors`.
        targets: by name. Where ranks hold copies of everything, the same on each.
        cohort: the ranks, which may be others than those that wrote.

    Raises:
        OSError, ValueError, RuntimeError: a file could not be read, or is not as the table says; on
            the other ranks a RankError names the one that failed.
    """
    alone = not cohort.divided
    if not alone or cohort.rank == 0:
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        with _reported(cohort):
            reader = _Reader(folder, written)
            load(dict(targets), storage_reader=reader, planner=planner, no_dist=alone)
    if alone:
        for target in targets.values():
            cohort.spread(target, target if cohort.rank == 0 else None)


def described(written: Mapping[str, Any]) -> dict[str, Tensor]:
    """Make tensors without numbers, of the types and shapes of those in `Written.tensors`."""
    return {
        name: torch.empty(one["size"], dtype=_dtype(one), device="meta")
        for name, one in written.items()
    }


def taken_apart(
    optimizer: torch.optim.Optimizer, names: Sequence[str], cohort: TrainingCohort
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return this rank's tensors by ``PARAMETER/NAME``, and plain data that all ranks share.

    Every rank must ask.

    Args:
        optimizer: over the same parameters on every rank, of which it has moved those that it has.
        names: of the parameters, in the optimizer's order.
        cohort: the ranks.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for index, held in state["state"].items():
        for name, value in held.items():
            if not isinstance(value, Tensor):
                values.setdefault(names[index], {})[name] = value
                continue
            tensors[f"{names[index]}/{name}"] = value
    if cohort.owners:  # each rank knows the parameters that it moves
        values = {name: held for each in cohort.gather(values) for name, held in each.items()}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]
    return tensors, {"groups": groups, "values": values}


def room_for(
    optimizer: torch.optim.Optimizer, names: Sequence[str], saved: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Make tensors to be filled, divided and placed as the parameters are.

    Args:
        optimizer: as of `taken_apart`.
        names: likewise.
        saved: tensors of their type and whole shape, by ``PARAMETER/NAME``.
    """
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameters, room = dict(zip(names, moved, strict=True)), {}
    for key, like in saved.items():
        parameter = parameters[key.rpartition("/")[0]]
        if like.dim() and like.shape == parameter.shape:
            room[key] = torch.zeros_like(parameter, dtype=like.dtype, requires_grad=False)
        else:  # a single number is in main memory, as a count of steps is
            device = parameter.device if like.dim() else torch.device("cpu")
            room[key] = torch.zeros(like.shape, dtype=like.dtype, device=device)
    return room


def put_together(
    optimizer: torch.optim.Optimizer,
    names: Sequence[str],
    own: Collection[str],
    tensors: Mapping[str, Tensor],
    rest: Mapping[str, Any],
) -> None:
    """Give an optimizer the state that `taken_apart` returned.

    Args:
        optimizer: as of `taken_apart`.
        names: likewise.
        own: of these, the parameters that this rank holds.
        tensors: this rank's, by ``PARAMETER/NAME``.
        rest: the plain data.
    """
    state = {name: dict(held) for name, held in rest["values"].items() if name in own}
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition("/")
        state.setdefault(name, {})[kind] = tensor
    groups = optimizer.state_dict()["param_groups"]
    here = ("params", "foreach", "fused")  # the devices of this run decide how it is computed
    groups = [
        {**told, **{key: g[key] for key in here if key in g}}
        for told, g in zip(rest["groups"], groups, strict=True)
    ]
    found = {index: state[name] for index, name in enumerate(names) if name in state}
    optimizer.load_state_dict({"state": found, "param_groups": groups})


class _Storage:
    """What torch asks of a storage before and behind its files: nothing."""

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


class _Writer(_Storage, StorageWriter):
    """Writes one rank's pieces to a file; `facts` and `tensors` are those of `Written`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.facts: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        digest, results, at = hashlib.sha256(), [], 0
        with self._file.open("xb", buffering=0) as stream:
            for item in plan.items:
                tensor: Any = planner.resolve_data(item)
                # One at a time: on an accelerator a whole part would need as much main memory.
                flat = tensor.detach().cpu().contiguous().flatten()
                data = flat.view(torch.uint8).numpy().data
                results.append(WriteResult(item.index, len(data), (self._file.name, at)))
                digest.update(data)
                at += len(data)
                while len(data):
                    data = data[stream.write(data) :]
            os.fsync(stream.fileno())
        self.facts = {self._file.name: {"sha256": digest.hexdigest(), "size": at}}
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {one.index: one.storage_data for each in results for one in each}
        for name, tensor in metadata.state_dict_metadata.items():
            assert isinstance(tensor, TensorStorageMetadata), name
            pieces = []
            for chunk in tensor.chunks:
                file, at = places[MetadataIndex(name, chunk.offsets)]
                where = {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes)}
                pieces.append({**where, "file": file, "at": at})
            dtype = str(tensor.properties.dtype).removeprefix("torch.")
            self.tensors[name] = {"dtype": dtype, "size": list(tensor.size), "pieces": pieces}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass


class _Reader(_Storage, StorageReader):
    """Reads the pieces that a rank needs, of any ranks' files."""

    def __init__(self, folder: Path, written: Mapping[str, Any]) -> None:
        self._folder = folder
        self._written = written

    def read_metadata(self) -> Metadata:
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=_dtype(tensor)),
                    torch.Size(tensor["size"]),
                    [
                        ChunkStorageMetadata(torch.Size(p["offsets"]), torch.Size(p["sizes"]))
                        for p in tensor["pieces"]
                    ],
                )
                for name, tensor in self._written.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._read(item))
            planner.commit_tensor(item, target)
        return _done(None)

    def _read(self, item: ReadItem) -> Tensor:
        """Read what is asked of a piece, and no more rows of it than that needs."""
        tensor, begin = self._written[item.storage_index.fqn], item.storage_index.offset
        (piece,) = [p for p in tensor["pieces"] if torch.Size(p["offsets"]) == begin]
        sizes, offsets, lengths = list(piece["sizes"]), item.storage_offsets, item.lengths
        first, row = 0, math.prod(sizes[1:])
        if sizes:
            first, sizes[0] = offsets[0], lengths[0]
        found = torch.empty(sizes, dtype=_dtype(tensor))
        with (self._folder / piece["file"]).open("rb", buffering=0) as stream:
            stream.seek(piece["at"] + first * row * found.itemsize)
            data = found.flatten().view(torch.uint8).numpy().data
            while len(data):
                count = stream.readinto(data)
                if not count:
                    raise ValueError(f"{piece['file']} ends before {item.storage_index.fqn} does")
                data = data[count:]
        for dim in range(1, len(sizes)):
            found = found.narrow(dim, offsets[dim], lengths[dim])
        return found

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        pass


@contextmanager
def _reported(cohort: TrainingCohort) -> Iterator[None]:
    """Turn errors of torch's module into the error of this rank, or of the one that failed."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        rank = 0 if not cohort.divided else cohort.rank
        if rank in error.failures:
            raise error.failures[rank][0] from error
        other, (cause, _) = min(error.failures.items())
        raise RankError(
            f"rank {other} of {cohort.size} stopped at its part of a checkpoint: "
            f"{str(cause) or type(cause).__name__}"
        ) from None
    except RuntimeError as error:  # of a collective: any other came in a CheckpointException
        raise (UnansweredError(error) if cohort.divided else error) from error


def _dtype(tensor: Mapping[str, Any]) -> torch.dtype:
    found = getattr(torch, tensor["dtype"], None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{tensor['dtype']!r} is no type of numbers")
    return found


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
