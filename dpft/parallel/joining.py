"""How the processes of a run find each other, and how they part.

They meet in a store that torchrun holds for as long as it lives: what processes of an earlier life
wrote there (`--max-restarts`) is still there when others come in their place, and torch reads it: a
rank that takes a dead process's address for another rank's waits until its timeout, in silence.
So the ranks first agree on who they are, and then use a part of the store that none but them knows.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store, _set_pg_timeout

from dpft.config.errors import DpftError, RankError
from dpft.parallel.cohort import TIMEOUT, UnansweredError

_LOGGER = logging.getLogger(__name__)
# How far apart ranks may begin: machines start when they have room, and disks may be slow. On one
# machine all begin together. A rank that dies before its first contact leaves no trace.
_JOINING, _JOINING_HERE = timedelta(minutes=5), timedelta(seconds=30)
_MEETING = timedelta(seconds=20)  # once all are there and have nothing to do but to connect
_CONNECTING = timedelta(seconds=5)  # to a server that has just answered
_SILENT = 5.0  # seconds of waiting before a rank says what it waits for
_LEFT = "left"  # in the store: why the first rank that left did


@contextmanager
def connected(device: torch.device) -> Iterator[None]:
    """Among the processes that torchrun started for this run.

    A rank that leaves by an exception tells the others why; they end with that reason.

    Args:
        device: where this rank computes.

    Raises:
        RankError: if the ranks do not find each other, or another one left.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = _connect("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    except UnansweredError as error:
        raise RankError(_told(store) or str(error)) from error
    except RankError:
        raise
    except BaseException as error:
        if _of_connection(error):
            raise RankError(_told(store) or str(UnansweredError(error))) from error
        _tell(store, f"rank {dist.get_rank()} of {dist.get_world_size()} {_reason(error)}")
        raise
    finally:
        dist.destroy_process_group()


def agreed(
    store: Store, rank: int, size: int, within: timedelta = _JOINING, lasting: bool = True
) -> Store:
    """The part of a store that these processes alone use, whatever others have left in it.

    Each process writes down who it is, and then a digest of all names as it finds them. They go on
    when all digests are equal: no process of an earlier life can have known the names of now.

    Args:
        store: where they meet.
        rank: of this process.
        size: how many there are.
        within: how long to wait for the others.
        lasting: whether the store outlives the ranks, so that a name may be that of a dead one.

    Raises:
        RankError: not all came.
    """
    names = [f"dpft/name/{number}" for number in range(size)]
    found = [f"dpft/found/{number}" for number in range(size)]
    store.set(names[rank], f"{socket.gethostname()} {os.getpid()} {time.time_ns()}")

    def missing() -> str:
        absent = [number for number, name in enumerate(names) if not store.check([name])]
        return f"ranks {absent} to begin" if absent else "ranks that began, and may have ended"

    for _ in _tries(within, rank, size, missing):
        if store.check(names):
            break
    # All were there a moment ago, unless the names are of an earlier life.
    for _ in _tries(within if lasting else _MEETING, rank, size, missing):
        digest = hashlib.sha256(b"\n".join(store.multi_get(names))).hexdigest()
        store.set(found[rank], digest)
        if store.check(found) and set(store.multi_get(found)) == {digest.encode()}:
            break
    return PrefixStore(f"dpft/{digest}", store)


def _tries(within: timedelta, rank: int, size: int, missing: Callable[[], str]) -> Iterator[None]:
    """Give one try after the other, and say what this rank waits for if that takes long.

    Raises:
        RankError: the time is over.
    """
    began, said, seconds = time.monotonic(), False, within.total_seconds()
    while (waited := time.monotonic() - began) < seconds:
        yield
        if waited > _SILENT and not said:
            said = True
            _LOGGER.warning(
                "rank %d of %d waits for %s, %.0f s at most", rank, size, missing(), seconds
            )
        # Signals are heard in between. One server answers all ranks: many ask less often.
        time.sleep(min(1.0, 0.02 * size))
    raise RankError(
        f"rank {rank} of {size} waited {seconds:.0f} s for {missing()}; expected all {size}: see "
        "their messages. The same command begins again"
    )


def _meeting_place(rank: int, size: int) -> Store:
    """Find torchrun's store, or the one that the first rank holds, and a part of it for these."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    lasting = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    here = not lasting and address in ("localhost", "127.0.0.1", "::1")
    within, holds = (_JOINING_HERE if here else _JOINING), rank == 0 and not lasting
    if not holds:
        # torch would wait in C++, where it hears no signal.
        for _ in _tries(within, rank, size, lambda: f"rank 0 to answer at {address}:{port}"):
            with suppress(OSError):
                socket.create_connection((address, port), timeout=1).close()
                break
    # It waits for no worker, and is shared with other stores of this process at that port.
    store = TCPStore(address, port, size, holds, _CONNECTING, False, True)
    store.set_timeout(_JOINING)
    return agreed(store, rank, size, within, lasting)


def _connect(backend: str) -> Store:
    """Make the group of all ranks, and give the store that is theirs."""
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = _meeting_place(rank, size)
        with _ended_by_signals():
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=_MEETING
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
    """Within it Ctrl-C and SIGTERM end the process on the spot, unless they are ignored.

    torch waits here for ranks that may have died, without Python, which would only hear them then;
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


def _of_connection(error: BaseException) -> bool:
    """Whether a collective raised it that is not one of `Cohort`, but of a sharded layer."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, DpftError):
        return f"stopped: {error}"
    if isinstance(error, KeyboardInterrupt):
        return "was told to stop; the same command continues from the last checkpoint"
    return f"stopped at an error ({type(error).__name__}: {error}); see its messages"


def _tell(store: Store, why: str) -> None:
    """For those who are left behind; what the first one says counts."""
    with suppress(RuntimeError):  # the store was a rank's, which is gone
        store.compare_set(_LEFT, "", why)


def _told(store: Store) -> str:
    with suppress(RuntimeError):
        if store.check([_LEFT]):
            return store.get(_LEFT).decode(errors="replace")
    return ""
