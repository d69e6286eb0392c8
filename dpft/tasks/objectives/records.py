"""Records: what the data sets are made of, before any tokenizer has seen them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


class Record(Protocol):
    """One record of a data set."""

    def parts(self) -> Iterator[bytes]:
        """Its contents: two records are the same if and only if their parts are."""
        ...


@dataclass(frozen=True)
class TextRecord:
    """A text to write, given another.

    Attributes:
        segments: the source, in pieces that the model is to tell apart: the turns of a dialogue.
        target: what is to be written.
    """

    segments: tuple[str, ...]
    target: str

    @property
    def source(self) -> str:
        return "\n".join(self.segments)

    def parts(self) -> Iterator[bytes]:
        yield len(self.segments).to_bytes(8, "big")
        for text in (*self.segments, self.target):
            yield text.encode()


@dataclass(frozen=True)
class Conversation:
    """Turns of a chat, up to the last answer.

    Attributes:
        turns: role and text of each; the last is the ``assistant``'s.
    """

    turns: tuple[tuple[str, str], ...]

    @property
    def source(self) -> str:
        """What precedes the last answer."""
        return "\n".join(f"{role}: {text}" for role, text in self.turns[:-1])

    @property
    def target(self) -> str:
        """The last answer."""
        return self.turns[-1][1]

    def parts(self) -> Iterator[bytes]:
        yield len(self.turns).to_bytes(8, "big")
        for turn in self.turns:
            for text in turn:
                yield text.encode()


@dataclass(frozen=True)
class LabelledText:
    """One or two texts, and the class they belong to.

    Attributes:
        texts: a sentence, or a pair of sentences.
        label: index into the task's class names.
    """

    texts: tuple[str, ...]
    label: int

    @property
    def source(self) -> str:
        return "\n".join(self.texts)

    def parts(self) -> Iterator[bytes]:
        yield len(self.texts).to_bytes(8, "big") + self.label.to_bytes(8, "big", signed=True)
        for text in self.texts:
            yield text.encode()
