"""From ``conf/parallel`` to the cohort of a run: how its processes find each other, and part."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from dpft.config.errors import ConfigError, DpftError, RankError
from dpft.config.schema import Parallel
from dpft.parallel.cohort import TIMEOUT, Replicas, TrainingCohort, UnansweredError, be_patient
from dpft.parallel.launch import launched

# How far apart ranks may begin: machines start when they have room, and disks may be slow.
_JOINING = timedelta(minutes=5)
_LEFT = "left"  # in the store: why the first rank that left did


@contextmanager
def joined(device: torch.device, parallel: Parallel) -> Iterator[TrainingCohort]:
    """Give the cohort of this process: all that torchrun started, in their layout, or this one.

    A rank that leaves by an exception tells the others why; they end with that reason.

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
        yield TrainingCohort()
        return
    with _connected(device):
        Replicas().meet(word=f"{parallel}")  # of another layout a rank would wait for other groups
        match parallel.name:
            case "data":
                yield Replicas()
            case "fsdp":
                yield _sharded(device, size, shards)
            case "pipeline":
                yield _pipelines(parallel)


def _sharded(device: torch.device, size: int, shards: int) -> TrainingCohort:
    from dpft.parallel.sharded import Shards

    if shards == size:
        return Shards(init_device_mesh(device.type, (size,)))
    names = ("copy", "shard")
    mesh = init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=names)
    be_patient(mesh)
    return Shards(mesh)


def _pipelines(parallel: Parallel) -> TrainingCohort:
    from dpft.parallel.cohort import Pipelines

    return Pipelines(parallel.length, parallel.schedule or "1f1b", parallel.microbatches)


@contextmanager
def _connected(device: torch.device) -> Iterator[None]:
    """Connect the ranks, and end all with the reason of the first one that leaves."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = _connect("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    except UnansweredError as error:
        raise RankError(_read_reason(store) or str(error)) from error
    except RankError:
        raise
    except BaseException as error:
        # A collective of a sharded layer, which is not one of the cohort's, raises such errors.
        lost = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
        if lost or isinstance(error, dist.DistError):
            raise RankError(_read_reason(store) or str(UnansweredError(error))) from error
        why = f"rank {dist.get_rank()} of {dist.get_world_size()} {_reason(error)}"
        with suppress(RuntimeError):  # the store was a rank's, which is gone
            store.compare_set(_LEFT, "", why)
        raise
    finally:
        dist.destroy_process_group()


def _connect(backend: str) -> Store:
    """Make the group of all ranks, and return the store that is theirs."""
    try:
        with _ended_by_signals():
            store, rank, size = next(rendezvous("env://", timeout=_JOINING))
            # torchrun's store outlives its ranks: those that it begins again must not read the
            # addresses of the dead.
            life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"dpft/{life}", store)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=_JOINING
            )
        # All are connected now: a step may take long.
        _set_pg_timeout(TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"the ranks did not find each other ({' '.join(str(error).split())[:200]}); expected "
            f"all to reach the first one's machine, {os.environ.get('MASTER_ADDR')} at port "
            f"{os.environ.get('MASTER_PORT')}: torchrun gives both, and has messages of the others"
        ) from error
    return store


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the process on the spot, unless they are ignored.

    torch waits here for ranks that may have died, in C++, where no handler of Python's is called;
    nothing has begun.
    """
    heard = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(usual := signal.getsignal(number)):
                heard[number] = usual
                signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, usual in heard.items():
            signal.signal(number, usual)


def _reason(error: BaseException) -> str:
    if isinstance(error, DpftError):
        return f"stopped: {error}"
    if isinstance(error, KeyboardInterrupt):
        return "was told to stop; the same command continues from the last checkpoint"
    return f"stopped at an error ({type(error).__name__}: {error}); see its messages"


def _read_reason(store: Store) -> str:
    with suppress(RuntimeError):
        if store.check([_LEFT]):
            return store.get(_LEFT).decode(errors="replace")
    return ""
