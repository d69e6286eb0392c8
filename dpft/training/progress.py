"""Live progress on the terminal; plain lines where lines cannot be redrawn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
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

# Seconds between lines where lines cannot be redrawn, as in a log file.
_LINE_EVERY = 15.0
_RISE = 1.1  # of the mean loss; a smaller rise may be chance


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
        self._last_line = time.monotonic()
        self._evaluation = ""

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

    def evaluated(self, when: str, text: str, brief: str) -> None:
        """Print a line on held-out records; its brief form is shown with later steps' losses."""
        self._evaluation = brief
        self.say(f"{when}  {text}")

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

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._bars.update(bar, advance=count)
            if total is None or self.console.redraws or done == total:
                return
            if self._waited():
                self.say(f"{name} {done}/{total}")

        yield advance
        self._bars.update(bar, total=total or 1, completed=total or 1)

    @contextmanager
    def training(
        self, start: int, mechanism: Mechanism
    ) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
        """Show a bar over steps with loss and spent budget; warn if nothing was learned."""
        bar = self._bars.add_task("training", total=mechanism.steps, completed=start, note="")
        seen: list[Mapping[str, Any]] = []

        def show(step: int, summary: Mapping[str, Any]) -> None:
            if self.console.quiet:  # another rank shows it
                return
            seen.append({key: summary[key] for key in ("loss", "records", "dropped")})
            done = step + 1
            line = self._verbosity == "steps"
            if not self.console.redraws and (self._waited() or done == mechanism.steps):
                line = True
            if not (line or self.console.redraws):
                return  # an epsilon takes a part of a second
            note = self._note(step, summary, mechanism)
            self._bars.update(bar, completed=done, note=note)
            if line:
                self.say(f"step {done}/{mechanism.steps}  {note}")

        yield show
        if self.may_tell(mechanism.noise_multiplier > 0) and (caution := caution_of(seen)):
            self.warn(caution)

    def may_tell(self, noised: bool) -> bool:
        """Return whether noiseless figures may be shown: on a terminal, but not in a log file."""
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
        if self._evaluation and self.console.is_terminal:
            notes.append(self._evaluation)
        return "  ".join(notes)

    def _waited(self) -> bool:
        """Return whether the last line was printed long ago; if so, wait as long again."""
        now = time.monotonic()
        waited = now - self._last_line >= _LINE_EVERY
        if waited:
            self._last_line = now
        return waited


def caution_of(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the noiseless losses of some steps, and what to type."""
    if not steps:
        return None
    tenth = max(1, len(steps) // 10)
    records, dropped = (sum(s[key] for s in steps[-tenth:]) for key in ("records", "dropped"))
    if records and dropped == records:
        return (
            f"none of the {records:,} records of the last {tenth} steps had a finite loss and "
            "gradient, so nothing was learned from them; type a smaller optim.lr"
        )
    first, last = (
        [one["loss"] for one in some if one["loss"] is not None]
        for some in (steps[:tenth], steps[-tenth:])
    )
    if len(steps) > 1 and first and last and fmean(last) > _RISE * fmean(first):
        return (
            f"the mean loss rose from {fmean(first):.3f} to {fmean(last):.3f}; type a smaller "
            "optim.lr"
        )
    return None
