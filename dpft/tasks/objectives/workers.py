"""Processes that encode pieces of the records, in order.

Not processes of `multiprocessing`: those begin with the main module of this one, which may be
anybody's script and begin a run of its own. What is sent is pickled, and goes to a child and back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from typing import Any

from dpft.config.errors import TrainingError
from dpft.runs.array_store import Array


def in_processes(
    objective: Any, records: Sequence[Any], kind: str, size: int, count: int
) -> Iterator[Mapping[str, Array]]:
    """Packed examples of each piece of the records, in order.

    Each process has one piece at a time, so that no more than a piece a process is in memory.

    Args:
        objective: which encodes; of a module that can be imported.
        records: slices of which another process can read.
        kind: of tokens.
        size: records of a piece.
        count: how many processes.

    Raises:
        TrainingError: if a process ended by itself; else what a process raised.
    """
    starts = range(0, len(records), size)
    workers = [Worker() for _ in range(count)]
    try:
        for worker, start in zip(workers, starts, strict=False):
            worker.send((objective, kind))
            worker.send(records[start : start + size])
        for number in range(len(starts)):
            worker = workers[number % count]
            packed = worker.receive()
            if number + count < len(starts):
                start = starts[number + count]
                worker.send(records[start : start + size])
            yield packed
    finally:
        for worker in workers:
            worker.close()


class Worker:
    """A process that encodes; it ends with this one, which holds the other end of its pipe."""

    def __init__(self) -> None:
        self._pipe, other = Pipe()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        with other:
            self._process = subprocess.Popen(
                self.command(other.fileno()), pass_fds=[other.fileno()], env=environment
            )

    @staticmethod
    def command(pipe: int) -> list[str]:
        """What is run, given the number of the pipe's end."""
        return [sys.executable, "-m", "dpft.tasks.objectives.worker_process", str(pipe)]

    def send(self, thing: Any) -> None:
        """Pass something on that can be pickled.

        Raises:
            TrainingError: if the process has ended.
        """
        try:
            self._pipe.send(thing)
        except OSError as error:
            raise self._ended() from error

    def receive(self) -> Mapping[str, Array]:
        """The next piece.

        Raises:
            TrainingError: if the process has ended; else what it raised.
        """
        try:
            failed, result = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if failed:
            raise result
        packed: Mapping[str, Array] = result
        return packed

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _ended(self) -> TrainingError:
        return TrainingError(
            f"a process that encoded records ended with {self._process.wait()}; expected it to "
            "stay: was it killed, or was there no memory left? threads=1 encodes in one process"
        )
