"""Ctrl-C and SIGTERM: a sentence and the status that shells expect, at whatever moment they come.

SIGTERM is what a scheduler sends that takes a machine back, and what torchrun passes on to its
ranks; of several ranks the first one speaks.
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
    """A signal came that asks to end.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        self.status = _status(number)


def heed_at_once() -> None:
    """From now on a signal ends the process on the spot; where it is ignored, it still is."""
    for number, usual in _HEEDED.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def heed_by_exception() -> None:
    """From now on a signal is a KeyboardInterrupt: there may be something to finish."""
    for number in _HEEDED:
        if signal.getsignal(number) is _stop:
            signal.signal(number, _raise)


def heed_no_more() -> None:
    """From now on a signal ends the process by itself: all is said, and nothing left to finish."""
    for number in _HEEDED:
        if signal.getsignal(number) in (_stop, _raise):
            signal.signal(number, signal.SIG_DFL)


def speaks() -> bool:
    """Whether this process says what all that were started with it would say."""
    return os.environ.get("RANK", "0") == "0"


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    if speaks():
        os.write(2, _SAID)
    os._exit(_status(number))


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGTERM:
        # A scheduler tells every process, and torchrun tells its ranks again: once is enough.
        signal.signal(number, signal.SIG_IGN)
    raise Stopped(number)


def _status(number: int) -> int:
    """What shells report of a program that the signal ended."""
    return 128 + number
