"""Functions and whole runs on several ranks at once, connected by gloo, forked from one server."""

import os
import pickle
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from tests.processes import Forked, dpft_in
from tests.torture import Operations

# A rank that waits longer for another than this has found a deadlock.
_TIMEOUT = timedelta(seconds=60)


def together(function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """What the function returns on each of ``size`` ranks; its first argument is the cohort.

    Raises:
        AssertionError: with the errors of all ranks, if one failed or did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Forked(_rank, folder, rank, size, function, arguments) for rank in range(size)]
        try:
            deadline = time.monotonic() + 240
            while any(rank.status is None for rank in ranks) and time.monotonic() < deadline:
                time.sleep(0.01)
            errors = [rank.said[1] for rank in ranks]
            assert [rank.status for rank in ranks] == [0] * size, "\n".join(errors)
            return [pickle.loads(Path(folder, f"{rank}").read_bytes()) for rank in range(size)]
        finally:
            for rank in ranks:
                rank.__exit__()


def _rank(
    folder: str, rank: int, size: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    from dpft.parallel.cohort import Replicas

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=size, timeout=_TIMEOUT
    )
    cohort = Replicas()
    Path(folder, f"{rank}").write_bytes(pickle.dumps(function(cohort, *arguments)))
    # A rank that leaves while another still connects to it would fail that one.
    cohort.barrier()
    if dist.is_initialized():  # a test may have left it
        dist.destroy_process_group()


@contextmanager
def fake_ranks(size: int, rank: int = 0) -> Iterator[None]:
    """A process group of which this process is one rank, and no other exists."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


# --- whole runs, with the environment that torchrun gives ---

# Of a run of a second: what takes longer shows no more of how ranks work together.
STEPS = 5
SETTINGS = (
    *("train", "task=text2text", "task.source=sample", "task.limit_train=40", "task.limit_eval=2"),
    *("optim.batch_size=8", f"optim.steps={STEPS}", "checkpoint_every=2", "threads=1"),
    *("eps=3", "privacy.noise_seed=1", "decode=greedy", "decode.max_new_tokens=4"),
)


def free_port() -> int:
    """Return a port that no process listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def in_group(
    rank: int, size: int, port: int, function: Any, *arguments: Any, **more: Any
) -> Forked:
    """Start a function as one of several ranks, with more of torchrun's variables if given."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port, **more}
    variables = {name: f"{value}" for name, value in own.items()}
    with mock.patch.dict(os.environ, variables, MASTER_ADDR="127.0.0.1"):
        return Forked(function, *arguments)


def ranks(
    arguments: Sequence[str],
    *folders: Path,
    run: Path | None = None,
    last: int = 0,
    amid: tuple[Path, int] | None = None,
) -> list[Forked]:
    """Start ``dpft ARGUMENTS`` in each folder, a rank each; one alone is a process of no group.

    The first rank dies amid its ``last`` operation, counted from 1, in the folder of the ``run``;
    or ``amid``, a file and a number, as soon as so many lines of that file are on the disk.
    """
    port, calls = free_port(), [(dpft_in, list(arguments), folder) for folder in folders]
    if run is not None:
        calls[0] = (_watched, *calls[0][1:], run, last)
    elif amid is not None:
        calls[0] = (_dies, *calls[0][1:], *amid)
    if len(calls) == 1:
        return [Forked(*calls[0])]
    return [in_group(rank, len(calls), port, *call) for rank, call in enumerate(calls)]


def _dies(arguments: list[str], cwd: Path, file: Path, lines: int) -> None:
    """Run ``dpft ARGUMENTS``, ended by SIGKILL as soon as the file has so many lines."""
    sync = os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        if file.exists() and file.read_bytes().count(b"\n") >= lines:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = synced
    dpft_in(arguments, cwd)


def _watched(arguments: list[str], cwd: Path, run: Path, last: int) -> None:
    Operations(run, last).watch()
    dpft_in(arguments, cwd)
