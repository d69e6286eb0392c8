"""Templates of infilling: literal words, one blank, places for a record's texts; label words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.config.errors import ConfigError

MASK = "[MASK]"
_PLACEHOLDER = re.compile(r"(<[^<>]*>|\[[^\[\]]*\])")
_TEXT = re.compile(r"<S([12])((?::[a-z]+)*)>")
_EXPECTED = f"expected {MASK} once, <S1>, and for pairs <S2>, as in '<S1> ? {MASK} , <S2>'"


def _open(text: str) -> str:
    return text[:-1].rstrip() if text[-1:] in (".", "?", "!") else text


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


MODIFIERS: Mapping[str, Callable[[str], str]] = {"open": _open, "lower": _lower}
"""What ``<S1:open>`` (without its final ``.``, ``?`` or ``!``) and ``<S2:lower>`` (its first letter
in lower case) do to a text."""


@dataclass(frozen=True)
class Piece:
    """A part of a template.

    Attributes:
        words: literal text, or `MASK`.
        text: which of the record's texts stands here, from 0; None for words and mask.
        modifiers: what is done to the text, in order.
        space: whether a space stands before the text.
    """

    words: str = ""
    text: int | None = None
    modifiers: tuple[str, ...] = ()
    space: bool = False

    def of(self, texts: Sequence[str]) -> str:
        """The piece, filled in."""
        if self.text is None:
            return self.words
        filled = texts[self.text].strip()
        for name in self.modifiers:
            filled = MODIFIERS[name](filled)
        return f" {filled}" if self.space else filled


def parse_template(template: str) -> tuple[Piece, ...]:
    """``"<S1> It was [MASK] ."`` as its pieces.

    A space before a text belongs to the text, and one before the blank to the word that fills it,
    which is how byte-level tokens are made.

    Raises:
        ConfigError: for an unknown placeholder or modifier, or unless there is one blank and a
            first text.
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
        pieces.append(Piece(MASK) if part == MASK else _placeholder(part, space, template))
    pieces += [Piece(words)] if words else []
    blanks = sum(piece.words == MASK for piece in pieces)
    if blanks != 1:
        raise ConfigError(f"task.template is {template!r} with {blanks} {MASK}; {_EXPECTED}")
    if not any(piece.text == 0 for piece in pieces):
        raise ConfigError(f"task.template is {template!r} without <S1>; {_EXPECTED}")
    return tuple(pieces)


def _placeholder(part: str, space: bool, template: str) -> Piece:
    match = _TEXT.fullmatch(part)
    if match is None:
        raise ConfigError(f"task.template is {template!r} with unknown {part}; {_EXPECTED}")
    modifiers = tuple(match[2].split(":")[1:])
    for name in modifiers:
        if name not in MODIFIERS:
            raise ConfigError(
                f"task.template is {template!r} with unknown modifier {name!r}; expected one of "
                f"{', '.join(MODIFIERS)}, as in <S1:open>"
            )
    return Piece("", int(match[1]) - 1, modifiers, space)


def check_words(label_words: Mapping[str, Any], classes: Sequence[str]) -> None:
    """Refuse words of other classes than there are, and a word that is none.

    Raises:
        ConfigError: naming the class.
    """
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
        if not isinstance(word, str) or not word.strip() or word != word.strip():
            advice = "; a YAML file needs quotes: 'Yes', 'No'" if isinstance(word, bool) else ""
            raise ConfigError(f"task.label_words.{name} is {word!r}; expected a word{advice}")
