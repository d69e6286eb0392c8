"""What a metric refuses before it scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def check_counts(predictions: Sequence[str], references: Sequence[Any]) -> None:
    """Refuse predictions without items to score them by, and no predictions.

    Raises:
        ValueError: if there are none, or not as many of one as of the other.
        TypeError: if a string stands where a sequence of strings is expected.
    """
    if isinstance(predictions, str):
        raise TypeError("expected a sequence of predictions, got one string; pass [prediction]")
    if not predictions or len(predictions) != len(references):
        raise ValueError(
            f"got {len(predictions)} predictions and references for {len(references)} items; "
            "expected one or more, and as many of one as of the other"
        )


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse what no official scorer can score.

    Args:
        predictions: one text per item, may be "".
        references: one or more texts per item, at least one of them with words.

    Raises:
        ValueError, TypeError: as `check_counts`; also if an item has no reference with words.
    """
    check_counts(predictions, references)
    for i, refs in enumerate(references, 1):
        if isinstance(refs, str):
            raise TypeError(
                f"references of item {i} are one string, expected a sequence of strings; "
                "pass [reference]"
            )
        if not any(ref.strip() for ref in refs):  # official scorers divide by zero here
            got = "only empty references" if refs else "no references"
            raise ValueError(f"item {i} has {got}, expected one with words; leave it out")
