"""Templates of infilling: literal words, one blank, places for a record's texts; label words."""

import re
from collections.abc import Mapping, Sequence

from dpft.config.errors import ConfigError

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
