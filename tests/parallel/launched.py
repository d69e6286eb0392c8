"""Runs of several ranks: forked with the environment that torchrun gives, or by torchrun itself."""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from tests.processes import Forked, command, dpft_in
from tests.torture import Operations


@contextlib.contextmanager
def environment(**told: Any) -> Iterator[None]:
    """With these variables for what is started inside."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update({name: str(value) for name, value in told.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


LONG = pytest.mark.skipif("DPFT_LONG" not in os.environ, reason="seconds: DPFT_LONG=1 runs it")
"""For a further case of what others show too."""

# Of a run of a second: what takes longer shows no more of how ranks work together.
STEPS = 5
SETTINGS = (
    *("train", "task=text2text", "task.source=sample", "task.limit_train=40", "task.limit_eval=2"),
    *("optim.batch_size=8", f"optim.steps={STEPS}", "checkpoint_every=2", "threads=1"),
    *("eps=3", "privacy.noise_seed=1", "decode=greedy", "decode.max_new_tokens=4"),
)


def ranks(
    arguments: Sequence[str],
    *folders: Path,
    run: Path | None = None,
    last: int = 0,
    amid: tuple[Path, int] | None = None,
    others: Sequence[str] = (),
) -> list[Forked]:
    """A rank in each folder.

    Args:
        arguments: of dpft.
        folders: where the ranks run.
        run: if given, the folder of a run: the first rank dies amid its ``last`` operation there.
        last: counted from 1.
        amid: if given, a file and a number: the first rank dies as soon as so many lines of it are
            on the disk, before it does anything else.
        others: further arguments of all ranks but the first.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank, folder in enumerate(folders):
        with environment(
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=len(folders),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            OMP_NUM_THREADS=1,
        ):
            if rank == 0 and run is not None:
                processes.append(Forked(_watched, list(arguments), folder, run, last))
            elif rank == 0 and amid is not None:
                processes.append(Forked(dies, list(arguments), folder, *amid))
            else:
                processes.append(command([*arguments, *(others if rank else ())], folder))
    return processes


def dies(arguments: list[str], cwd: Path, file: Path, lines: int) -> None:
    """``dpft ARGUMENTS``, which ends by SIGKILL as soon as the file has so many lines."""
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


class Torchrun:
    """``torchrun --nproc-per-node 2 -m dpft ARGUMENTS``, ended behind a ``with`` block.

    Args:
        arguments: of dpft.
        cwd: where it runs.
        restarts: how often torchrun begins again when a rank died.
    """

    def __init__(self, arguments: Sequence[str], cwd: Path, restarts: int = 0) -> None:
        self._output = cwd / f"said-{time.time_ns()}"
        options = ["--nproc-per-node", "2", "--max-restarts", str(restarts)]
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *options, "-m", "dpft", *arguments],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self.status is None or self.ranks():
            # It would begin others in their place.
            end(self.pid, signal.SIGKILL)
            for pid in self.ranks().values():
                end(pid, signal.SIGKILL)
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Of torchrun."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Of torchrun; None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """By all of them, to both outputs."""
        return self._output.read_text(errors="replace")

    def ranks(self) -> dict[int, int]:
        """The process of each rank that lives now."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                told = (entry / "environ").read_text().split("\0")
                variables = dict(word.split("=", 1) for word in told if "=" in word)
                if _parent(entry) == self.pid and "TORCHELASTIC_RUN_ID" in variables:
                    found[int(variables["RANK"])] = int(entry.name)
        return found

    def finish(self, seconds: float) -> int:
        """Wait for the end; the status."""
        await_(lambda: self.status is not None, seconds)
        assert self.status is not None
        return self.status


class Agent(Torchrun):
    """The same by torchrun's own agent, in a process that has imported everything.

    Its ranks are forked from it: a life takes no seconds of imports.
    """

    def __init__(self, arguments: Sequence[str], cwd: Path, restarts: int = 0) -> None:
        self._folder = cwd / f"ranks-{time.time_ns()}"
        self._folder.mkdir()
        with environment(OMP_NUM_THREADS=1):
            self._forked = Forked(_agent, list(arguments), cwd, self._folder, restarts)

    def __exit__(self, *error: object) -> None:
        super().__exit__()
        self._forked.__exit__()

    @property
    def pid(self) -> int:
        assert self._forked.pid is not None
        return self._forked.pid

    @property
    def status(self) -> int | None:
        return self._forked.status

    @property
    def said(self) -> str:
        return "".join(self._forked.said)

    def ranks(self) -> dict[int, int]:
        found = {}
        for file in sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime_ns):
            rank, _, pid = file.name.partition(" ")
            if lives(int(pid)):
                found[int(rank)] = int(pid)
        return found


def _agent(arguments: list[str], cwd: Path, folder: Path, restarts: int) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.chdir(cwd)
    multiprocessing.current_process().daemon = False  # these may have no children
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="test",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, _rank)(arguments, folder)


def _rank(arguments: list[str], folder: Path) -> None:
    Path(folder, f"{os.environ['RANK']} {os.getpid()}").touch()
    # The agent's own; a program that torchrun starts has the usual ones.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dpft_in(arguments, Path.cwd())


def await_(condition: Callable[[], bool], seconds: float) -> None:
    """Return as soon as the condition holds.

    Raises:
        TimeoutError: if it does not within that time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.01)


def end(pid: int, number: int) -> None:
    """Send a signal to a process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def lives(pid: int) -> bool:
    """Whether the process runs."""
    try:
        return _parent(Path(f"/proc/{pid}")) is not None
    except OSError:
        return False


def _parent(entry: Path) -> int | None:
    """Of a process under ``/proc``; None if it has ended."""
    # The name of a program, before it, may hold blanks and brackets.
    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    return None if state == "Z" else int(parent)
