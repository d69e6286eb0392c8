"""Live progress on the terminal; plain lines where lines cannot be redrawn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from dpft.privacy import Mechanism
from dpft.privacy.rounding import up
from dpft.report.console import Console
from dpft.report.terminal import clock

# Seconds before the first line of a phase, and between lines, where lines cannot be redrawn.
_FIRST_LINE, _LINE_EVERY = 2.0, 15.0


class Progress:
    """Bars for the phases of a run, on standard error so that output can be piped."""

    def __init__(self, quiet: bool = False, verbosity: str = "normal") -> None:
        self.console = Console(stderr=True, quiet=quiet)
        self._verbosity = verbosity
        self._bars = Bars(
            TextColumn("{task.description:>9}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            disable=not self.console.redraws or verbosity == "quiet",
        )
        self._start_clock()

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        if self._verbosity != "quiet":
            self.console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)

    @contextmanager
    def phase(
        self, name: str, total: int | None, note: str = ""
    ) -> Iterator[Callable[[int], None]]:
        """Show a bar of ``total`` units with a ``note``; yield a function that advances it.

        Where lines cannot be redrawn: a line at the beginning, and one now and then if the total
        is known. A total that is private is None.
        """
        bar = self._bars.add_task(name, total=total, note=note)
        if not self.console.redraws:
            words = [name, note, "" if total is None else str(total), "..."]
            self.say(" ".join(filter(None, words)))
        done = 0
        self._start_clock()

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._bars.update(bar, advance=count)
            if total is None or self.console.redraws or done == total:
                return
            if self._waited():
                self.say(f"{name} {done}/{total}{self._left(done, total)}")

        yield advance
        self._bars.update(bar, total=total or 1, completed=total or 1)

    @contextmanager
    def training(
        self, start: int, mechanism: Mechanism
    ) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
        """Show a bar over steps with loss and spent budget."""
        bar = self._bars.add_task("training", total=mechanism.steps, completed=start, note="")
        noised = mechanism.noise_multiplier > 0
        self._start_clock()

        def show(step: int, summary: Mapping[str, Any]) -> None:
            if self.console.quiet:  # another rank shows it
                return
            done, redraws, notes = step + 1, self.console.redraws, []
            line = self._verbosity == "steps"
            line |= not redraws and (self._waited() or done == mechanism.steps)
            if not (line or redraws):
                return  # an epsilon takes a part of a second
            if noised:
                name = "eps if Poisson" if mechanism.sampling == "shuffle" else "eps"
                notes.append(f"{name} {up(mechanism.epsilon_after(done), decimals=2)}")
            if self.may_tell(noised):
                loss = summary["loss"]
                notes.append("loss -" if loss is None else f"loss {loss:.3f}")
                if summary["dropped"]:
                    notes.append(f"dropped {summary['dropped']}")
            note = "  ".join(notes)
            self._bars.update(bar, completed=done, note=note)
            if line:
                left = self._left(done - start, mechanism.steps - start)
                self.say(f"step {done}/{mechanism.steps}  {note}{left}")

        yield show

    def may_tell(self, noised: bool) -> bool:
        """Return whether noiseless figures may be shown: on a terminal, but not in a log file."""
        return self.console.is_terminal or not noised

    def _start_clock(self) -> None:
        self._began = time.monotonic()
        self._next_line = self._began + _FIRST_LINE

    def _waited(self) -> bool:
        """Return whether it is time for a line; if so, the next one comes later."""
        if waited := time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY
        return waited

    def _left(self, done: int, total: int) -> str:
        """Return how long the rest of a phase takes at the speed so far."""
        seconds = (time.monotonic() - self._began) * (total - done) / done
        return f"  about {clock(seconds)} left" if done < total else ""
