"""What a page is about: one run, or several of a folder or a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """One run, or a point of a sweep that may have none yet.

    Attributes:
        path: its directory, which need not exist.
        name: what tells it from the others on the page; no folder of the machine.
        label: its settings as typed in a sweep.
        state: what the sweep's journal says of it.
        error: why it failed. It may quote the data.
    """

    path: Path
    name: str
    label: str | None = None
    state: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Found:
    """What a report is about.

    Attributes:
        title: of the page.
        folder: where the page goes if nothing else is said.
        targets: at least one.
        several: whether the page is one of several runs, even if only one was found.
        metric: the score by which a sweep compares its runs; None: the first of each.
        searched: whether a sweeper chose settings by the scores of earlier runs.
        problems: what of the sweep could not be read.
    """

    title: str
    folder: Path
    targets: tuple[Target, ...]
    several: bool
    metric: str | None = None
    searched: bool = False
    problems: tuple[str, ...] = ()
