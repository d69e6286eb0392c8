"""Templates of infilling: literal words, one blank, places for a record's texts; label words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpft.config.errors import ConfigError

MASK = "[MASK]"
_PLACEHOLDER = re.compile(r"(<[^<>]*>|\[[^\[\]]*\])")
_TEXT = re.compile(r"<S([12])>")
_EXPECTED = f"expected {MASK} once, <S1>, and for pairs <S2>, as in '<S1> ? {MASK} , <S2>'"


@dataclass(frozen=True)
class Piece:
    """A part of a template."""

    words: str = ""  # literal text, or `MASK`
    # Which of the record's texts is inserted, from 0; None for words and mask.
    text: int | None = None
    space: bool = False  # whether a space precedes the text

    def of(self, texts: Sequence[str]) -> str:
        """Return the piece, filled in."""
        if self.text is None:
            return self.words
        filled = texts[self.text].strip()
        return f" {filled}" if self.space else filled


def parse_template(template: str, texts: int = 2) -> tuple[Piece, ...]:
    """Return ``"<S1> It was [MASK] ."`` as its pieces.

    A space before a text belongs to the text, and one before the blank to the word that fills it,
    which is how byte-level tokens are made.
    """
    pieces: list[Piece] = []
    words = ""
    for number, part in enumerate(_PLACEHOLDER.split(template)):
        if number % 2 == 0:
            words = part
            continue
        space, words = words.endswith(" "), words.removesuffix(" ")
        pieces += [Piece(words)] if words else []
        words = ""
        match = _TEXT.fullmatch(part)
        if match is not None:
            pieces.append(Piece("", int(match[1]) - 1, space))
        elif part == MASK:
            pieces.append(Piece(MASK))
        else:
            raise ConfigError(f"task.template is {template!r} with unknown {part}; {_EXPECTED}")
    pieces += [Piece(words)] if words else []
    blanks = sum(piece.words == MASK for piece in pieces)
    inserted = {piece.text for piece in pieces} - {None}
    if blanks != 1 or 0 not in inserted:
        raise ConfigError(f"task.template is {template!r} with {blanks} {MASK}; {_EXPECTED}")
    if texts == 1 and 1 in inserted:
        raise ConfigError(
            f"task.template is {template!r}, but records have one text; leave <S2> out"
        )
    return tuple(pieces)


def check_words(label_words: Mapping[str, str], classes: Sequence[str]) -> None:
    """Refuse words of other classes than there are, and what is no word."""
    for name in (*classes, *label_words):
        if name not in label_words:
            raise ConfigError(
                f"task.label_words has no word for {name}; expected one for each of "
                f"{', '.join(classes)}: type '++task.label_words.{name}=WORD'"
            )
        word = label_words[name]
        if name not in classes:
            raise ConfigError(
                f"task.label_words.{name} is {word!r}, but there is no such class; expected "
                f"{', '.join(classes)}"
            )
        if not word.strip() or word != word.strip():
            raise ConfigError(f"task.label_words.{name} is {word!r}; expected a word")
