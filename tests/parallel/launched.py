"""Runs of several ranks, forked with the environment that torchrun gives."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.processes import Forked, command, dpft_in
from tests.torture import Operations


@contextlib.contextmanager
def environment(**given: Any) -> Iterator[None]:
    """Set these variables for what is started inside."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update({name: str(value) for name, value in given.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


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


def ranks(
    arguments: Sequence[str],
    *folders: Path,
    run: Path | None = None,
    last: int = 0,
    amid: tuple[Path, int] | None = None,
    others: Sequence[str] = (),
) -> list[Forked]:
    """Start a rank in each folder.

    Args:
        arguments: of dpft.
        folders: where the ranks run.
        run: if given, the folder of a run: the first rank dies amid its ``last`` operation there.
        last: counted from 1.
        amid: if given, a file and a number: the first rank dies as soon as so many lines of it are
            on the disk, before it does anything else.
        others: further arguments of all ranks but the first.
    """
    port, processes = free_port(), []
    size = {"WORLD_SIZE": len(folders), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for rank, folder in enumerate(folders):
        with environment(RANK=rank, LOCAL_RANK=rank, OMP_NUM_THREADS=1, **size):
            if rank == 0 and run is not None:
                processes.append(Forked(_watched, list(arguments), folder, run, last))
            elif rank == 0 and amid is not None:
                processes.append(Forked(dies, list(arguments), folder, *amid))
            else:
                processes.append(command([*arguments, *(others if rank else ())], folder))
    return processes


def dies(arguments: list[str], cwd: Path, file: Path, lines: int) -> None:
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
