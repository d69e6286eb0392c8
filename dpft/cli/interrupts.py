"""Ctrl-C and SIGTERM: one sentence and the status that shells expect, whenever they come.

SIGTERM is what a scheduler sends that takes a machine back, and what torchrun passes on to its
ranks; of several ranks the first one prints the sentence.
"""

import os
import signal
from types import FrameType, MappingProxyType
from typing import NoReturn

_SAID = b"dpft: stopped; nothing had begun, the same command begins anew\n"
# Each signal with what Python does about it by itself.
_HEEDED = MappingProxyType(
    {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
)


class Stopped(KeyboardInterrupt):
    """A signal came that asks to end."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number  # as shells report it


def heed_at_once() -> None:
    """End the process at once at a signal from now on; an ignored signal stays ignored."""
    for number, usual in _HEEDED.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def heed_by_exception() -> None:
    """Raise KeyboardInterrupt at a signal from now on: there may be something to finish."""
    for number in _HEEDED:
        if signal.getsignal(number) is _stop:
            signal.signal(number, _raise)


def heed_no_more() -> None:
    """Let a signal end the process by itself from now on: all is printed and finished."""
    for number in _HEEDED:
        if signal.getsignal(number) in (_stop, _raise):
            signal.signal(number, signal.SIG_DFL)


def speaks() -> bool:
    """Return whether this process prints what all ranks would print."""
    return os.environ.get("RANK", "0") == "0"


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    if speaks():
        os.write(2, _SAID)
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGTERM:
        # A scheduler signals every process, and torchrun its ranks again: once is enough.
        signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)
