"""Ctrl-C and SIGTERM while steps are taken: heard where what was reached can be kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

HEARD = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Puts off the first signal while weights move, or for as long as ranks have to agree on it.

    A second Ctrl-C is the process's usual handler's at once. A second SIGTERM is none: a scheduler
    tells every process, and torchrun tells its ranks again.

    Args:
        agreed: whether several ranks stop together, at the end of a step; one process stops amid
            the sum of a step, which it has not released and forms again.

    Attributes:
        asked: the signal that waits.
        whole: whether weights, optimizer and thresholds are those of one number of steps.
    """

    def __init__(self, agreed: bool) -> None:
        self._agreed = agreed
        self._usual: dict[int, Any] = {}
        self.asked: int | None = None
        self.whole = True

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Within it signals come here, unless they are ignored or end the process by themselves."""
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in HEARD:
                if callable(usual := signal.getsignal(number)):
                    self._usual[number] = usual
                    signal.signal(number, self._hear)
        try:
            yield
        finally:
            for heard, usual in self._usual.items():
                if signal.getsignal(heard) == self._hear:
                    signal.signal(heard, usual)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Around what moves weights, optimizer or thresholds, and what is written of it."""
        self.whole = False
        yield
        self.whole = True
        if self.asked is not None and not self._agreed:
            self.stop(self.asked)

    @property
    def waiting(self) -> list[bool]:
        """Of each signal that is `HEARD`, whether it waits: what ranks agree on."""
        return [self.asked == number for number in HEARD]

    def stop_if(self, told: Sequence[bool]) -> None:
        """Stop by the first signal that any rank had.

        Args:
            told: as `waiting`, of all ranks.

        Raises:
            KeyboardInterrupt: there was one.
        """
        for number, had in zip(HEARD, told, strict=True):
            if had:
                self.stop(number)

    def stop(self, number: int) -> NoReturn:
        """Stop by this signal, which a rank may have had instead of this one.

        Raises:
            KeyboardInterrupt: always; of the usual handler's kind.
        """
        if usual := self._usual.get(number):
            usual(number, None)
        raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked == number == signal.SIGTERM:
            return
        if self.asked is not None or (self.whole and not self._agreed):
            self.stop(number)
        self.asked = number
