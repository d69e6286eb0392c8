"""Generated samples of the tasks' data, in their real file forms.

Their words are in YAML files next to this one.
"""

import hashlib
import random
from pathlib import Path
from typing import Any

import yaml

Words = list[str]


def vocabulary(name: str) -> dict[str, Any]:
    """Return words and sentences with gaps, from ``NAME.yaml`` in this folder."""
    text = (Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def generator(*key: object) -> random.Random:
    """Return a generator that depends on ``key`` alone."""
    # hash() of a string differs between processes; a digest does not.
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def article(noun_phrase: str) -> str:
    """Return a noun phrase with ``a`` or ``an`` before it."""
    return f"{'an' if noun_phrase[0] in 'aeiouAEIO' else 'a'} {noun_phrase}"


def upper(text: str) -> str:
    """Return a text with a capital first letter, and the others as they are."""
    return text[0].upper() + text[1:]
