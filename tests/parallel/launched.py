"""Runs of several ranks, forked with the environment that torchrun gives."""

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Forked, dpft_in
from tests.torture import Operations

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
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MASTER_ADDR": "127.0.0.1", **own}.items():
            patch.setenv(name, f"{value}")
        return Forked(function, *arguments)


def ranks(
    arguments: Sequence[str],
    *folders: Path,
    run: Path | None = None,
    last: int = 0,
    amid: tuple[Path, int] | None = None,
) -> list[Forked]:
    """Start a rank in each folder; where there is one folder, a process of no group.

    Args:
        arguments: of dpft.
        folders: where the ranks run.
        run: if given, the folder of a run: the first rank dies amid its ``last`` operation there.
        last: counted from 1.
        amid: if given, a file and a number: the first rank dies as soon as so many lines of it are
            on the disk, before it does anything else.
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
