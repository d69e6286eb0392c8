"""Perplexity per token of the references."""

from __future__ import annotations

import math
from collections.abc import Sequence

SIGNATURE = "token_perplexity:end token counted|over all tokens, not a mean over examples"
"""What decides the number beside the model's own tokenizer, for a run record."""


def token_perplexity(nlls: Sequence[float | None], tokens: Sequence[int | None]) -> float | None:
    """``exp(total negative log-likelihood / number of tokens)``, the end tokens counted.

    Long references weigh more than short ones. A tokenizer that cuts words finer gives another
    number for the same model quality: compare models of one tokenizer only.

    Args:
        nlls: natural negative log-likelihood of each reference, summed over its tokens.
        tokens: number of tokens of each reference.

    Returns:
        The perplexity, 1 or more; None if a likelihood is missing, which is so for predictions of
        another program, or if the number is not finite, as that of a diverged model.

    Raises:
        ValueError: if there is nothing to take it of, or not as many of one as of the other.
    """
    total, count = 0.0, 0
    missing = False
    for nll, number in zip(nlls, tokens, strict=True):
        if nll is None or number is None:
            missing = True
            continue
        total += nll
        count += number
    if missing:
        return None
    if count < 1:
        raise ValueError(f"got {count} tokens; expected one or more")
    try:
        perplexity = math.exp(total / count)
    except OverflowError:
        return None
    return perplexity if math.isfinite(perplexity) else None
