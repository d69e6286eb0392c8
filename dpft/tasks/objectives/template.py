"""Templates of infilling: literal words, one blank, places for a record's texts; label words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpft.config.errors import ConfigError

MASK = "[MASK]"
_PLACEHOLDER = re.compile(r"(<[^<>]*>|\[[^\[\]]*\])")
_TEXTS = {"<S1>": 0, "<S2>": 1}
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
        return f"{' ' * self.space}{texts[self.text].strip()}"


def parse_template(template: str, texts: int = 2) -> tuple[Piece, ...]:
    """Return ``"<S1> It was [MASK] ."`` as its pieces.

    A space before a text belongs to the text, and one before the blank to the word that fills it,
    which is how byte-level tokens are made.
    """
    pieces: list[Piece] = []
    words, *parts = _PLACEHOLDER.split(template)
    for place, following in zip(parts[::2], parts[1::2], strict=True):
        if (kept := words.removesuffix(" ")) != "":
            pieces.append(Piece(kept))
        if place != MASK and place not in _TEXTS:
            raise ConfigError(f"task.template is {template!r} with unknown {place}; {_EXPECTED}")
        inserted = Piece("", _TEXTS.get(place), words.endswith(" "))
        pieces.append(Piece(MASK) if place == MASK else inserted)
        words = following
    pieces += [Piece(words)] if words else []
    blanks, used = sum(p.words == MASK for p in pieces), {p.text for p in pieces}
    if blanks != 1 or 0 not in used:
        raise ConfigError(f"task.template is {template!r} with {blanks} {MASK}; {_EXPECTED}")
    if texts == 1 and 1 in used:
        raise ConfigError(
            f"task.template is {template!r}, but records have one text; leave <S2> out"
        )
    return tuple(pieces)


def check_words(label_words: Mapping[str, str], classes: Sequence[str]) -> None:
    """Refuse other words than one for each class."""
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
