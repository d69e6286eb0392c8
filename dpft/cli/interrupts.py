"""Ctrl-C and SIGTERM at any time: one sentence, and the exit status that shells expect.

A scheduler sends SIGTERM before it takes a machine back, and torchrun passes it on to its ranks, of
which the first prints the sentence.
"""

import os
import signal
from types import FrameType, MappingProxyType
from typing import NoReturn

_STOPPED = b"dpft: stopped; nothing was started, the same command starts over\n"
# Each signal with Python's own handler.
_HANDLED = MappingProxyType(
    {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
)


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number  # as shells report it


def end_at_signals() -> None:
    """End the process at once at a signal from now on; an ignored signal stays ignored."""
    for number, usual in _HANDLED.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def raise_at_signals() -> None:
    """Raise KeyboardInterrupt at a signal from now on, so that started work can be finished."""
    for number in _HANDLED:
        if signal.getsignal(number) is _stop:
            signal.signal(number, _raise)


def restore_signals() -> None:
    """Leave signals to the system from now on, when all is printed and finished."""
    for number in _HANDLED:
        if signal.getsignal(number) in (_stop, _raise):
            signal.signal(number, signal.SIG_DFL)


def speaks() -> bool:
    """Return whether this process prints for all ranks."""
    return os.environ.get("RANK", "0") == "0"


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    if speaks():
        os.write(2, _STOPPED)
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGTERM:
        # A scheduler signals every process, and torchrun its ranks again: once is enough.
        signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)
