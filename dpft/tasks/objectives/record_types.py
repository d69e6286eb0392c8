"""Records of the data sets, before any tokenizer reads them.

``parts`` yields the contents of a record: two records are equal if and only if their parts are.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dpft.config.errors import DataError

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
