"""Live progress on the terminal; plain lines where nothing can be redrawn."""

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
from dpft.training.course import Course

# Seconds between lines where no terminal can be redrawn, as in a log file.
_LINE_EVERY = 15.0


class Progress:
    """Bars for the phases of a run, on standard error so that output can be piped.

    Args:
        quiet: nothing is shown.
        verbosity: ``quiet``: warnings alone; ``steps``: a line for each step.
    """

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
        self._last_line = time.monotonic()
        self._beside = ""

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        if self._verbosity == "quiet":
            return
        self.console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)

    def evaluated(self, when: str, text: str, brief: str) -> None:
        """A line on held-out records, of which a brief form stands beside later steps' losses."""
        self._beside = brief
        self.say(f"{when}  {text}")

    @contextmanager
    def phase(
        self, name: str, total: int | None, note: str = ""
    ) -> Iterator[Callable[[int], None]]:
        """A bar of ``total`` units with a ``note`` beside it; the value advances it.

        Where nothing can be redrawn: a line at the beginning, and one now and then if the total is
        known.
        """
        bar = self._bars.add_task(name, total=total, note=note)
        if not self.console.redraws:
            words = [name, note, "" if total is None else str(total), "..."]
            self.say(" ".join(filter(None, words)))
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._bars.update(bar, advance=count)
            if total is None or self.console.redraws or done == total:
                return  # without a total, how many there are may be private
            if self._waited():
                self.say(f"{name} {done}/{total}")

        yield advance
        self._bars.update(bar, total=total or 1, completed=total or 1)

    @contextmanager
    def training(
        self, start: int, mechanism: Mechanism
    ) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
        """A bar over steps with loss and budget spent; a warning if nothing was learned."""
        bar = self._bars.add_task("training", total=mechanism.steps, completed=start, note="")
        course = Course()

        def show(step: int, summary: Mapping[str, Any]) -> None:
            if self.console.quiet:  # another rank shows it: no epsilon for nobody
                return
            course.add(summary)
            done = step + 1
            line = self._due(done, mechanism.steps)
            if not (line or self.console.redraws):
                return  # an epsilon takes part of a second
            note = self._note(step, summary, mechanism)
            self._bars.update(bar, completed=done, note=note)
            if line:
                self.say(f"step {done}/{mechanism.steps}  {note}")

        yield show
        if self.may_tell(mechanism.noise_multiplier > 0) and (caution := course.caution()):
            self.warn(caution)

    def may_tell(self, noised: bool) -> bool:
        """Noiseless figures of private records may be looked at, but not land in a log file."""
        return self.console.is_terminal or not noised

    def _note(self, step: int, summary: Mapping[str, Any], mechanism: Mechanism) -> str:
        notes = []
        if mechanism.noise_multiplier:
            name = "eps if Poisson" if mechanism.sampling == "shuffle" else "eps"
            notes.append(f"{name} {up(mechanism.epsilon_after(step + 1), decimals=2)}")
        if self.may_tell(mechanism.noise_multiplier > 0):
            loss = summary["loss"]
            notes.append("loss -" if loss is None else f"loss {loss:.3f}")
            if summary["dropped"]:
                notes.append(f"dropped {summary['dropped']}")
        if self._beside and self.console.is_terminal:
            notes.append(self._beside)
        return "  ".join(notes)

    def _due(self, done: int, total: int) -> bool:
        """Whether a line is printed after this step."""
        due = self._waited() or done == total
        return (due and not self.console.redraws) or self._verbosity == "steps"

    def _waited(self) -> bool:
        """Whether the last line that said so is long ago; if so, the next one is as far away."""
        now = time.monotonic()
        waited = now - self._last_line >= _LINE_EVERY
        if waited:
            self._last_line = now
        return waited
