"""``python -m dpft.tasks.objectives.worker_process PIPE``: one of the processes of `workers`."""

from __future__ import annotations

import contextlib
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from dpft.tasks.objectives.encoding import encode_all
from dpft.tasks.objectives.packed import pack


def _serve(pipe: Connection) -> None:
    """Encode what comes in until nothing does."""
    objective, kind = pipe.recv()
    while True:
        records = pipe.recv()
        try:
            result: Any = pack(encode_all(objective, list(records)), kind)
        except Exception as error:
            pipe.send((True, error))
        else:
            pipe.send((False, result))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks is told, and ends this one
    with contextlib.suppress(EOFError, OSError):
        _serve(Connection(int(sys.argv[1])))
