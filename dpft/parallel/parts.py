"""The tensors of a checkpoint in safetensors files, by torch.distributed.checkpoint.

That module plans which rank writes which piece of a tensor, each piece once, and which pieces a
rank needs that loads them, in any layout. Its reader of safetensors reads them; files hold plain
numbers and a header of JSON, no pickle. Its writer keeps two further copies of a rank's tensors in
main memory, so the writer here has the same form and writes one tensor at a time.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from dpft.config.errors import RankError
from dpft.parallel.cohort import RankGoneError, TrainingCohort

WEIGHTS, _OPTIMIZER = "weights/", "optimizer/"  # names of tensors begin with either
_TYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"},
    **{torch.uint8: "U8", torch.bool: "BOOL"},
}


def write(
    folder: Path, tensors: Mapping[str, Tensor], cohort: TrainingCohort
) -> dict[str, dict[str, Any]]:
    """Write what the ranks hold, durably; collective.

    Args:
        folder: empty, the same on every rank that holds other tensors.
        tensors: by name. Parts of one tensor have its name on every rank; copies are written once.
        cohort: the ranks. If each holds a whole copy, the first one writes.

    Returns:
        SHA-256 and size of each file, by name; empty on ranks that need not know.

    Raises:
        OSError: on the rank that cannot write its file; on the others a RankError names it.
    """
    alone = not cohort.divided
    if alone and cohort.rank:
        return {}
    writer = _Writer(folder / f"part-{cohort.rank:05d}.safetensors")
    planner = DefaultSavePlanner(flatten_state_dict=False)
    with _reported(cohort):
        save(dict(sorted(tensors.items())), storage_writer=writer, planner=planner, no_dist=alone)
    written = [writer.written] if alone else cohort.all_gather(writer.written)
    return {name: facts for each in written for name, facts in each.items()}


def read(folder: Path, targets: Mapping[str, Tensor], cohort: TrainingCohort) -> None:
    """Fill tensors, or this rank's parts of them; collective.

    Args:
        folder: of `write`, by these ranks or by others.
        targets: by name. If each rank holds a whole copy, the same on each.
        cohort: the ranks.

    Raises:
        OSError, ValueError, RuntimeError: a file cannot be read, or lacks a tensor; on the other
            ranks a RankError names the one that failed.
    """
    alone = not cohort.divided
    if not alone or cohort.rank == 0:
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        with _reported(cohort):
            reader = HuggingFaceStorageReader(str(folder))
            load(dict(targets), storage_reader=reader, planner=planner, no_dist=alone)
    if alone:
        for target in targets.values():
            cohort.broadcast(target, target if cohort.rank == 0 else None)


def described(folder: Path) -> dict[str, Tensor]:
    """Return tensors without values, of the types and whole shapes of all in the folder."""
    held: dict[str, Any] = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    return {
        name: torch.empty(one.size, dtype=one.properties.dtype, device="meta")
        for name, one in held.items()
    }


def taken_apart(
    moved: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return weights and optimizer state as this rank's tensors and plain data.

    Args:
        moved: the same names on every rank, in the optimizer's order; parameters of which this
            rank has nothing are on the meta device.
        optimizer: over ``moved``; its state is tensors.

    Returns:
        This rank's tensors by ``weights/PARAMETER`` and ``optimizer/PARAMETER/NAME``, and plain
        data that all ranks share.
    """
    tensors = {f"{WEIGHTS}{name}": own.detach() for name, own in moved.items() if not own.is_meta}
    names, state = list(moved), optimizer.state_dict()
    for index, held in state["state"].items():
        for name, value in held.items():
            tensors[f"{_OPTIMIZER}{names[index]}/{name}"] = value
    groups = [{k: v for k, v in g.items() if k != "params"} for g in state["param_groups"]]
    return tensors, {"groups": groups}


def put_together(
    moved: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    written: Mapping[str, Tensor],
    fill: Callable[[Mapping[str, Tensor]], None],
    rest: Mapping[str, Any],
) -> None:
    """Give parameters and an optimizer what `taken_apart` returned, on this or other ranks.

    Args:
        moved: as of `taken_apart`.
        optimizer: over ``moved``.
        written: all tensors by name, without values, of their types and whole shapes.
        fill: puts values into tensors, or into this rank's parts of them; collective.
        rest: the plain data.
    """
    own = {name: parameter for name, parameter in moved.items() if not parameter.is_meta}
    targets = {f"{WEIGHTS}{name}": parameter.detach() for name, parameter in own.items()}
    state: dict[str, dict[str, Tensor]] = {}
    for key, like in written.items():
        name, _, kind = key.removeprefix(_OPTIMIZER).rpartition("/")
        if not key.startswith(_OPTIMIZER) or name not in own:
            continue
        parameter = own[name]
        if like.dim() and like.shape == parameter.shape:  # divided and placed as it is
            room = torch.zeros_like(parameter, dtype=like.dtype, requires_grad=False)
        else:  # a single number is in main memory, as a count of steps is
            device = parameter.device if like.dim() else torch.device("cpu")
            room = torch.zeros(like.shape, dtype=like.dtype, device=device)
        targets[key] = state.setdefault(name, {})[kind] = room
    fill(targets)
    here = ("params", "foreach", "fused")  # the devices of this run decide how it is computed
    groups = [
        {**saved, **{key: group[key] for key in here if key in group}}
        for saved, group in zip(rest["groups"], optimizer.state_dict()["param_groups"], strict=True)
    ]
    found = {index: state[name] for index, name in enumerate(moved) if name in state}
    optimizer.load_state_dict({"state": found, "param_groups": groups})


class _Writer(StorageWriter):
    """Writes one rank's pieces to a file, in the form of torch's HuggingFaceStorageWriter.

    Attributes:
        written: SHA-256 and size of the file, by its name.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.written: dict[str, dict[str, Any]] = {}

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        header, offsets, results, size = dict[str, Any](), {}, [], 0
        for item in plan.items:
            assert item.tensor_data is not None
            kind, chunk = item.tensor_data.properties.dtype, item.tensor_data.chunk
            end = size + chunk.sizes.numel() * kind.itemsize
            place = {"shape": [*chunk.sizes], "data_offsets": [size, end]}
            header[item.index.fqn] = {"dtype": _TYPES[kind], **place}
            offsets[item.index.fqn] = {"saved_offsets": [*chunk.offsets]}
            results.append(WriteResult(item.index, end - size, None))
            size = end
        header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(offsets), "format": "pt"}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # numbers begin at multiples of eight bytes
        text = len(text).to_bytes(8, "little") + text
        digest = hashlib.sha256(text)
        with self._file.open("xb") as stream:
            stream.write(text)
            for item in plan.items:
                tensor: Any = planner.resolve_data(item)
                data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
                digest.update(data)
                stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        facts = {"sha256": digest.hexdigest(), "size": len(text) + size}
        self.written = {self._file.name: facts}
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pass  # each file has its own part of the table

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


@contextmanager
def _reported(cohort: TrainingCohort) -> Iterator[None]:
    """Turn errors of torch's module into the error of this rank, or of the one that failed."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        rank = cohort.rank if cohort.divided else 0
        if rank in error.failures:
            cause = error.failures[rank][0]
            raise (ValueError(cause) if isinstance(cause, SafetensorError) else cause) from error
        other, (cause, _) = min(error.failures.items())
        raise RankError(
            f"rank {other} of {cohort.size} stopped at its part of a checkpoint: "
            f"{str(cause) or type(cause).__name__}"
        ) from None
    except RuntimeError as error:  # of a collective: any other came in a CheckpointException
        raise (RankGoneError(error) if cohort.divided else error) from error
