"""A child process that does not outlive its parent, however the parent died.

The child holds the reading end of a pipe of which only the parent has the other end. When the
parent is gone, even by SIGKILL, the kernel closes that end and reading returns. The child then ends
its whole process group, in which its own workers are. That is safe, since runs survive any kill.
"""

from __future__ import annotations

import os
import signal
import threading

VARIABLE = "DPFT_SWEEP_LIFELINE"


def follow() -> None:
    """In the child: end with the parent, if one was named by `VARIABLE`."""
    number = os.environ.pop(VARIABLE, None)  # for this process only: below, it is another's file
    if number is None or os.getpgrp() != os.getpid():
        return  # not the leader of a group of its own: others would be ended too
    descriptor = int(number)
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_wait, args=(descriptor,), name="lifeline", daemon=True).start()


def _wait(descriptor: int) -> None:
    os.read(descriptor, 1)  # nothing is ever written
    os.killpg(os.getpgrp(), signal.SIGKILL)
