"""What a pipeline with several references refuses before it scores."""

from __future__ import annotations

from collections.abc import Sequence


def check_texts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse what no official scorer can score.

    Args:
        predictions: one text per item, may be "".
        references: one or more texts per item, at least one of them with words.

    Raises:
        ValueError: if there are no items, the lengths differ, or an item has no reference that is
            not empty.
        TypeError: if a string stands where a sequence of strings is expected.
    """
    if isinstance(predictions, str):
        raise TypeError("expected a sequence of predictions, got one string; pass [prediction]")
    if len(predictions) != len(references):
        raise ValueError(
            f"got {len(predictions)} predictions and references for {len(references)} items, "
            "expected as many of one as of the other"
        )
    if not predictions:
        raise ValueError("got no predictions, expected one or more")
    for i, refs in enumerate(references, 1):
        if isinstance(refs, str):
            raise TypeError(
                f"references of item {i} are one string, expected a sequence of strings; "
                "pass [reference]"
            )
        if not refs:
            raise ValueError(f"item {i} has no references, expected one or more; leave it out")
        if not any(ref.strip() for ref in refs):  # official scorers divide by zero here
            raise ValueError(
                f"item {i} has only empty references, expected one with words; leave it out"
            )
