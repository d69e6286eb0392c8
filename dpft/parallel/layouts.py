"""From ``conf/parallel`` to the ranks of a run: how they connect, and how they end together."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from dpft.config.errors import DpftError, RankError
from dpft.config.schema import Parallel
from dpft.parallel.cohort import TIMEOUT, Pipeline, RankGoneError, Replicas, TrainingCohort
from dpft.parallel.launch import launched

# How far apart ranks may start: machines start when they have room, and disks may be slow.
_JOINING = timedelta(minutes=5)
_REASON = "left"  # key of the store: why the first rank that left did


@contextmanager
def joined(device: torch.device, parallel: Parallel) -> Iterator[TrainingCohort]:
    """Yield the ranks of the run in their layout: all that torchrun started, or this process.

    If a rank leaves by an exception, the others end with its reason.

    Args:
        device: where this rank computes.
        parallel: the layout.

    Raises:
        RankError: if they do not find each other, have unlike layouts, or another one leaves.
    """
    size = launched()
    if size == 1:
        yield TrainingCohort()
        return
    with _connected(device):
        # A rank of another layout would wait for other groups.
        Replicas().barrier(word=f"{parallel}")
        if parallel.name == "pipeline":
            yield Pipeline(parallel.microbatches)
        elif parallel.name == "fsdp":
            from dpft.parallel.sharded import Shards

            yield Shards(init_device_mesh(device.type, (size,)))
        else:
            yield Replicas()


@contextmanager
def _connected(device: torch.device) -> Iterator[None]:
    """Connect the ranks, and end all with the reason of the first one that leaves."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = _connect("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    except BaseException as error:
        # A collective of a sharded layer, which is not one of the cohort's, raises such errors.
        lost = isinstance(error, RuntimeError) and "gloo/transport" in str(error)
        if lost or isinstance(error, RankGoneError | dist.DistError):
            gone = error if isinstance(error, RankGoneError) else RankGoneError(error)
            reason = ""
            with suppress(RuntimeError):  # the store was a rank's, which is gone
                if store.check([_REASON]):
                    reason = store.get(_REASON).decode(errors="replace")
            raise RankError(reason or str(gone)) from error
        if not isinstance(error, RankError):
            why = f"stopped at an error ({type(error).__name__}: {error}); see its messages"
            if isinstance(error, DpftError):
                why = f"stopped: {error}"
            elif isinstance(error, KeyboardInterrupt):
                why = "was interrupted; the same command continues from the last checkpoint"
            with suppress(RuntimeError):
                rank, size = dist.get_rank(), dist.get_world_size()
                store.compare_set(_REASON, "", f"rank {rank} of {size} {why}")
        raise
    finally:
        dist.destroy_process_group()


def _connect(backend: str) -> Store:
    """Make the group of all ranks, and return their store."""
    try:
        # torch waits here for ranks that may have died, in C++, where no handler of Python's is
        # called; nothing has started.
        with handled_by(signal.SIG_DFL):
            store, rank, size = next(rendezvous("env://", timeout=_JOINING))
            # torchrun's store outlives its ranks: restarted ones must not read the addresses of
            # the dead.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"dpft/{attempt}", store)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=_JOINING
            )
        # All are connected now: a step may take long.
        _set_pg_timeout(TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"the ranks did not find each other ({' '.join(str(error).split())[:200]}); expected "
            f"all to reach the first one's machine, {os.environ.get('MASTER_ADDR')} at port "
            f"{os.environ.get('MASTER_PORT')}: torchrun sets both, and prints what the others said"
        ) from error
    return store


@contextmanager
def handled_by(handler: Any) -> Iterator[dict[int, Any]]:
    """Handle Ctrl-C and SIGTERM by ``handler``, unless they are ignored or end the process anyway.

    Yields the usual handlers by signal, which return at the end.
    """
    usual: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # others may set no handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(own := signal.getsignal(number)):
                usual[number] = own
                signal.signal(number, handler)
    try:
        yield usual
    finally:
        for given, own in usual.items():
            if signal.getsignal(given) == handler:
                signal.signal(given, own)
