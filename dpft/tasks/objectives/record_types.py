"""Records of the data sets, before any tokenizer reads them.

``parts`` yields the contents of a record: two records are equal if and only if their parts are.

A template of infilling has literal words, one blank, and places for a record's texts.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpft.config.errors import ConfigError, DataError

Pixels = npt.NDArray[np.uint8]

# Other formats that Pillow knows start programs or keep several images.
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "WEBP")
# A few kilobytes may be decoded to gigabytes of one colour; the largest of Food-101 has 512 by 512.
_PIXELS = 1 << 24


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


ANSWERS = ("assistant", "call")
"""The roles of turns that the model writes."""


@dataclass(frozen=True)
class Conversation:
    """Turns of a chat, each with role and text; the last is the assistant's.

    Roles are ``system``, ``user``, ``assistant``, ``tool`` (what a tool returned), ``call`` (an
    answer with calls of tools, as JSON of ``text`` and ``calls``), and ``tools``: JSON of those
    that are offered, before all other turns.
    """

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


class LabelledText(NamedTuple):
    """A sentence, or a pair of sentences, with an index into the task's class names."""

    texts: tuple[str, ...]
    label: int
    subset: str = ""  # part of the split, where parts are scored separately; no part of contents

    @property
    def source(self) -> str:
        return "\n".join(self.texts)

    def parts(self) -> Iterator[bytes]:
        yield len(self.texts).to_bytes(8, "big") + self.label.to_bytes(8, "big", signed=True)
        for text in self.texts:
            yield text.encode()


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """An image, and the class it belongs to."""

    image: Pixels | bytes  # RGB pixels ``(H, W, 3)`` in uint8, or an encoded image
    label: int  # index into the task's class names
    source: str  # what the image is called, for people; no part of the contents

    def parts(self) -> Iterator[bytes]:
        yield self.label.to_bytes(8, "big", signed=True)
        if isinstance(self.image, np.ndarray):
            yield b"pixels"
            for length in self.image.shape:
                yield length.to_bytes(8, "big")
            yield self.image.tobytes()
        else:
            yield b"encoded"
            yield self.image

    def pixels(self, size: int | None = None) -> Pixels:
        """Return the image as ``(size, size, 3)``, or in its own size ``(H, W, 3)``.

        Resizing is bilinear, over all pixels that an output pixel covers, whatever the image's
        proportions: as torchvision's ``Resize((size, size))`` does it.
        """
        from PIL import Image

        if isinstance(self.image, np.ndarray):
            if size is None or self.image.shape[:2] == (size, size):
                return self.image
            image = Image.fromarray(self.image)
        else:
            try:
                with Image.open(io.BytesIO(self.image), formats=_FORMATS) as opened:
                    if opened.width * opened.height > _PIXELS:
                        raise ValueError("too large")
                    image = opened.convert("RGB")
            # Pillow's parsers raise more than one type on broken files.
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                raise DataError(
                    f"{self.source} is not an image that can be read ({type(error).__name__}); "
                    f"expected one of {', '.join(_FORMATS)}, of at most {_PIXELS:,} pixels"
                ) from error
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        return np.asarray(image)


MASK = "[MASK]"
TEXTS = {"<S1>": 0, "<S2>": 1}
"""Places of a record's texts, and which of them each is."""
_PLACE = re.compile(r"( ?(?:<[^<>]*>|\[[^\[\]]*\]))")
_EXPECTED = f"expected {MASK} once, <S1>, and for pairs <S2>, as in '<S1> ? {MASK} , <S2>'"


def parse_template(template: str, texts: int = 2) -> tuple[str, ...]:
    """Return ``"<S1> It was [MASK] ."`` as its pieces: words, `MASK`, and `TEXTS`.

    A space before a text belongs to the text (``" <S2>"``), and one before the blank to the word
    that fills it, which is how byte-level tokens are made.
    """
    pieces = [piece for piece in _PLACE.split(template) if piece]
    places = [piece.strip() for piece in pieces if _PLACE.fullmatch(piece)]
    if unknown := [place for place in places if place not in (MASK, *TEXTS)]:
        raise ConfigError(f"task.template is {template!r} with unknown {unknown[0]}; {_EXPECTED}")
    if places.count(MASK) != 1 or "<S1>" not in places:
        raise ConfigError(
            f"task.template is {template!r} with {places.count(MASK)} {MASK}; {_EXPECTED}"
        )
    if texts == 1 and "<S2>" in places:
        raise ConfigError(
            f"task.template is {template!r}, but records have one text; leave <S2> out"
        )
    return tuple(MASK if piece.strip() == MASK else piece for piece in pieces)


def check_words(label_words: Mapping[str, str], classes: Sequence[str]) -> None:
    """Raise ConfigError unless there is one word for each class."""
    for name in (*classes, *label_words):
        if name not in label_words:
            raise ConfigError(
                f"task.label_words has no word for {name}; expected one for each of "
                f"{', '.join(classes)}: type '++task.label_words.{name}=WORD'"
            )
        word = label_words[name]
        if name not in classes or not word.strip() or word != word.strip():
            raise ConfigError(
                f"task.label_words.{name} is {word!r}; expected a word, for each of the classes "
                f"{', '.join(classes)}"
            )
