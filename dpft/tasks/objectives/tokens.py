"""Tokens of many texts at once."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dpft.config.errors import ModelError

# Texts that hardly any tokenizer joins with what follows: see `ids_behind`.
_ANCHORS = ("\n", ":", "a")


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text, without special ones; [] for an empty text."""
    if not texts:
        return []
    # verbose: else the tokenizer would write the length of a text that is too long into the log.
    found = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
    )
    return [ids if text else [] for text, ids in zip(texts, found["input_ids"], strict=True)]


def pad(
    rows: Sequence[Sequence[int]], width: int, padding: int, left: bool = False
) -> tuple[Tensor, Tensor]:
    """Return rows of tokens with padding on the right, or ``left``, and the mask of tokens.

    Both are ``(B, width)`` in int64.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))[:, None]
    columns = np.arange(width)
    mask = columns >= width - lengths if left else columns < lengths
    out = np.full(mask.shape, padding)
    out[mask] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return torch.from_numpy(out), torch.from_numpy(mask.astype(np.int64))


def joins(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokens of two texts are those of both together; not in SentencePiece."""
    spaced, glued, one, after_space, after = token_ids(tokenizer, ["a b", "a:", "a", " b", ":"])
    return spaced == [*one, *after_space] and glued == [*one, *after]


def ids_behind(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], before: Sequence[str]
) -> list[list[int]]:
    """Return the tokens of pieces of longer texts, for a tokenizer that does not join them.

    A piece is encoded behind the text ``before`` it, whose tokens are taken off ("" at the start
    of a text). Where both share a token, it is encoded behind another text.
    """
    found = []
    for text, other in zip(texts, before, strict=True):
        (ids,) = token_ids(tokenizer, [text])
        for anchor in (other, *_ANCHORS) if text and other else ():
            given, whole = token_ids(tokenizer, [anchor, anchor + text])
            if whole[: len(given)] == given:
                ids = whole[len(given) :]
                break
        found.append(ids)
    return found


def special_texts(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the texts that a tokenizer turns into special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the tokens of a text such as ``<|im_end|>`` without the special one."""

    def ids(piece: str) -> list[int]:
        found: list[int] = tokenizer.encode(
            piece, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return found

    whole = ids(text)
    if tokenizer.convert_tokens_to_ids(text) not in whole:
        return whole
    # The vocabulary itself has it as a piece of text.
    return [token for character in text for token in ids(character)]


def around(tokenizer: PreTrainedTokenizerBase, target: bool) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after a text.

    With ``target``, of a text to write: some put another language's token there.
    """
    text = "a"
    whole = tokenizer(text_target=text) if target else tokenizer(text)
    ids: list[int] = whole["input_ids"]
    (inner,) = token_ids(tokenizer, [text])
    for place in range(len(ids) - len(inner) + 1):
        if ids[place : place + len(inner)] == inner:
            return ids[:place], ids[place + len(inner) :]
    raise ModelError(
        f"{type(tokenizer).__name__} makes the tokens {ids} of {text!r} as a whole text and "
        f"{inner} of it alone; expected a tokenizer that puts its own tokens around a text's"
    )
