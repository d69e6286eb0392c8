"""Processes that encode pieces of the records, in order; ``python -m dpft.objectives.workers``.

Not `multiprocessing`: its processes begin with the main module of this one, which may be anybody's
script and begin a run of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from dpft.errors import TrainingError
from dpft.objectives.packed import pack
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
    begin = pickle.dumps((objective, kind))
    starts = range(0, len(records), size)
    workers = [_start() for _ in range(count)]
    try:
        for worker, start in zip(workers, starts, strict=False):
            _send(worker, begin)
            _send(worker, pickle.dumps(records[start : start + size]))
        for number in range(len(starts)):
            worker = workers[number % count]
            packed = _receive(worker)
            if number + count < len(starts):
                start = starts[number + count]
                _send(worker, pickle.dumps(records[start : start + size]))
            yield packed
    finally:
        for worker in workers:
            worker.kill()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            worker.wait()


def _start() -> subprocess.Popen[bytes]:
    """A process that ends with this one: it waits for the other end of a pipe."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "dpft.objectives.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )


def _send(worker: subprocess.Popen[bytes], data: bytes) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(len(data).to_bytes(8, "big") + data)
        worker.stdin.flush()
    except BrokenPipeError as error:
        raise _ended(worker) from error


def _receive(worker: subprocess.Popen[bytes]) -> Mapping[str, Array]:
    assert worker.stdout is not None
    data = _read(worker.stdout)
    if data is None:
        raise _ended(worker)
    failed, result = pickle.loads(data)
    if failed:
        raise result
    packed: Mapping[str, Array] = result
    return packed


def _ended(worker: subprocess.Popen[bytes]) -> TrainingError:
    return TrainingError(
        f"a process that encoded records ended with {worker.wait()}; expected it to stay: was it "
        "killed, or was there no memory left? threads=1 encodes in one process"
    )


def _read(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    size = pipe.read(8)
    if len(size) < 8:
        return None
    data = pipe.read(int.from_bytes(size, "big"))
    return data if len(data) == int.from_bytes(size, "big") else None


def _serve() -> None:
    """Encode what comes in until nothing does."""
    from dpft.objectives.encoding import encode_all

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks is told, and ends this one
    # Whatever a library prints goes elsewhere.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    begin = _read(sys.stdin.buffer)
    if begin is None:
        return
    objective, kind = pickle.loads(begin)
    while (data := _read(sys.stdin.buffer)) is not None:
        try:
            records = pickle.loads(data)
            result = pickle.dumps((False, pack(encode_all(objective, list(records)), kind)))
        except Exception as error:
            result = pickle.dumps((True, error))
        with contextlib.suppress(BrokenPipeError):
            out.write(len(result).to_bytes(8, "big") + result)
            out.flush()


if __name__ == "__main__":
    _serve()
