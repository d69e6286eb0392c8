"""Records of the data sets, before any tokenizer reads them.

``parts`` yields the contents of a record: two records are equal if and only if their parts are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


class Record(Protocol):
    """One record of a data set."""

    def parts(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class TextRecord:
    """A text to write, given another."""

    segments: tuple[str, ...]  # the source, in pieces to tell apart: the turns of a dialogue
    target: str  # the text to write

    @property
    def source(self) -> str:
        return "\n".join(self.segments)

    def parts(self) -> Iterator[bytes]:
        yield len(self.segments).to_bytes(8, "big")
        for text in (*self.segments, self.target):
            yield text.encode()


@dataclass(frozen=True)
class Conversation:
    """Turns of a chat, each with role and text; the last is the ``assistant``'s."""

    turns: tuple[tuple[str, str], ...]

    @property
    def source(self) -> str:
        """Return what precedes the last answer."""
        return "\n".join(f"{role}: {text}" for role, text in self.turns[:-1])

    @property
    def target(self) -> str:
        """Return the last answer."""
        return self.turns[-1][1]

    def parts(self) -> Iterator[bytes]:
        yield len(self.turns).to_bytes(8, "big")
        for turn in self.turns:
            for text in turn:
                yield text.encode()


@dataclass(frozen=True)
class LabelledText:
    """A sentence, or a pair of sentences, with an index into the task's class names."""

    texts: tuple[str, ...]
    label: int

    @property
    def source(self) -> str:
        return "\n".join(self.texts)

    def parts(self) -> Iterator[bytes]:
        yield len(self.texts).to_bytes(8, "big") + self.label.to_bytes(8, "big", signed=True)
        for text in self.texts:
            yield text.encode()
