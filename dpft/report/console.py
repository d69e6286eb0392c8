"""Rich's console, for text that comes from anywhere: no markup, links or escape sequences in it."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from dpft.report.terminal import plain

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID


class Console(rich.console.Console):
    """Prints every text as it is: ``[bold]`` is six characters. What is styled is a rich ``Text``.

    Args:
        options: of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    @property
    def redraws(self) -> bool:
        """Return whether lines can be redrawn; with ``TERM=dumb`` they can only be added."""
        return self.is_terminal and not self.is_dumb_terminal

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return segments to be written, with the text of each spelt out where it is no text."""
        for segment in super().render(renderable, options):
            if segment.control:  # rich's own, which moves the cursor
                yield segment
            else:
                yield Segment(plain(segment.text), segment.style)


def width_to_fit() -> int | None:
    """Return the columns of the terminal; None where lines are piped, and stay whole for grep."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if narrow else None


def make_console() -> Console:
    """Return a console for a wide table."""
    # A pipe has no width.
    return Console(width=160) if width_to_fit() is None else Console()


@contextmanager
def progress_bar(*columns: "str | ProgressColumn") -> "Iterator[tuple[Progress, TaskID]]":
    """Show a live bar with rich's columns on standard error, if its lines can be redrawn."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.redraws) as bars:
        yield bars, bars.add_task("", total=None)
