"""Ctrl-C before a verb has begun: a sentence and status 130, while Python is still importing."""

import os
import signal
from types import FrameType

_SAID = b"dpft: stopped; nothing had begun, the same command begins anew\n"
STATUS = 130  # what shells expect of a program that Ctrl-C ended


def heed_at_once() -> None:
    """From now on Ctrl-C ends the process on the spot; where it is ignored, it still is."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def heed_by_exception() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again: there may be something to finish."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, _SAID)
    os._exit(STATUS)
