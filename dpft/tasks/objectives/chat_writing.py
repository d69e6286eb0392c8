"""Whole conversations from a model that was trained on all turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from dpft.config.errors import ConfigError
from dpft.config.schema import Decode
from dpft.privacy import keys
from dpft.tasks.objectives.chat import ChatObjective
from dpft.tasks.objectives.decode import Written, own_settings
from dpft.tasks.objectives.evaluation import evaluating
from dpft.tasks.objectives.tokens import token_ids


@torch.no_grad()
def write_conversations(
    objective: ChatObjective,
    model: Any,
    count: int,
    settings: Decode,
    seed: int,
    system: str | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Written]:
    """``count`` conversations, each drawn by itself from the end token on.

    A text is read back by `ChatForm.read`, from its last end token on that closes an answer:
    what a model wrote behind that, before it was stopped, is left out.

    Args:
        objective: of a model that was trained with ``train_on="all"``.
        model: the model; left in training mode if it was.
        count: how many.
        settings: how to sample; ``max_new_tokens`` are those of a whole conversation.
        seed: of the random numbers.
        system: what all conversations begin with; None: the model writes that too, if its training
            records had any.
        advance: called with the number of conversations that are done.

    Raises:
        ConfigError: ``system`` leaves no position to write at.

    Returns:
        As text, JSON of role and text of the turns; empty where no conversation was written. One
        is ``finished`` if the model closed it by itself.
    """
    end = int(objective.tokenizer.eos_token_id)
    opening = "" if system is None else objective.form.opening(system)
    prompt = [end, *token_ids(objective.tokenizer, [opening])[0]]
    given = len(prompt) + getattr(model, "prefix_length", 0)
    key, out, new = keys.public_key(seed), list[Written](), _room(model, len(prompt), settings)
    with evaluating(model), own_settings(model, end, end):
        for number, first in enumerate(range(0, count, settings.batch_size)):
            torch.manual_seed(keys.seed(key, "conversations of a batch", number))
            rows = min(settings.batch_size, count - first)
            ids = torch.tensor([prompt] * rows, device=model.device)
            written = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=settings.beams,
                do_sample=settings.sample,
                top_p=settings.top_p if settings.sample else None,
                top_k=0 if settings.sample else None,
                length_penalty=settings.length_penalty if settings.beams > 1 else None,
                max_new_tokens=new,
                eos_token_id=None,
                pad_token_id=end,
                stopping_criteria=StoppingCriteriaList([_Closed(end, objective.closing, given)]),
            )[:, len(prompt) :]
            out += [_read(objective, opening, row) for row in written.tolist()]
            advance(rows)
    return out


class _Closed(StoppingCriteria):
    """Stops a row once it ends in an answer's end token and what closes a conversation.

    Args:
        end: the end token.
        closing: see `ChatObjective.closing`.
        given: how many tokens of a row are the prompt, which is no answer.
    """

    def __init__(self, end: int, closing: Sequence[int], given: int) -> None:
        self.given = given
        self.eos_token_id = end  # transformers fills the rows that stopped only if there is one
        self.pattern = torch.tensor([end, *closing])

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        pattern = self.pattern.to(input_ids.device)
        if input_ids.shape[1] < self.given + len(pattern):
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        return (input_ids[:, -len(pattern) :] == pattern).all(1)


def _read(objective: ChatObjective, opening: str, ids: list[int]) -> Written:
    """The conversation of a row, up to the last end token with which it is one."""
    tokenizer, end, tail = objective.tokenizer, objective.tokenizer.eos_token_id, objective.closing
    pattern = [end, *tail]
    starts = range(len(ids) - len(pattern) + 1)
    closed = next((i for i in starts if ids[i : i + len(pattern)] == pattern), None)
    ends = [
        i for i, token in enumerate(ids[: None if closed is None else closed + 1]) if token == end
    ]
    for last in reversed(ends):
        whole = [*ids[: last + 1], *tail[:-1]]
        # The tokens as they are: a tokenizer may take the blank before a full stop away.
        text = str(tokenizer.decode(whole, clean_up_tokenization_spaces=False))
        turns = objective.form.read(opening + text)
        if turns is not None:
            return Written(json.dumps(turns, ensure_ascii=False), last == closed)
    return Written("", False)


def _room(model: Any, given: int, settings: Decode) -> int:
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return settings.max_new_tokens
    left = positions - getattr(model, "prefix_length", 0) - given
    if left < 1:
        raise ConfigError(
            f"the system text takes {given:,} tokens with what stands around it, and the model has "
            f"{positions:,} positions in all; expected room for a conversation: shorten system"
        )
    return min(settings.max_new_tokens, left)
