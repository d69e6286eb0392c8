"""Rich's console, for text that comes from anywhere: no markup, links or escape sequences in it."""

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from dpft.report.terminal import plain


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
