"""Rich's console, for text that comes from anywhere: no markup, links or escape sequences in it."""

import io
from collections.abc import Callable, Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

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
        """Whether lines can be redrawn; ``TERM=dumb``, as editors have it, only adds new ones."""
        return self.is_terminal and not self.is_dumb_terminal

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments to be written, with the text of each spelt out where it is no text."""
        for segment in super().render(renderable, options):
            if segment.control:  # rich's own, which moves the cursor
                yield segment
            else:
                yield Segment(plain(segment.text), segment.style)


def print_notes(notes: Iterable[tuple[str, str]], console: Console) -> None:
    """Heading and text of each, below each other."""
    for heading, text in notes:
        line = Text.assemble((f"{heading}: ", "bold"), text)
        console.print(Padding(line, (0, 0, 0, 1)), highlight=False)


def as_plain_text(show: Callable[[Console], None], width: int) -> str:
    """What ``show`` prints on a console of ``width`` characters, without colours."""
    stream = io.StringIO()
    show(Console(file=stream, width=width, color_system=None))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
