"""Whole conversations from a model that was trained on all turns."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from dpft.config.errors import ConfigError
from dpft.config.schema import Decode
from dpft.privacy import keys
from dpft.tasks.objectives.base import text_room
from dpft.tasks.objectives.chat import ChatObjective
from dpft.tasks.objectives.decode import Written, how_to_choose, own_settings
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
    """Return ``count`` conversations, each drawn by itself from the end token on.

    A text is read back by `ChatForm.read` up to its last end token that closes an answer; what
    follows it is left out. The objective is of ``train_on="all"``, ``max_new_tokens`` are those of
    a whole conversation, and without ``system``, the system prompt of all, the model may write one.

    Returns:
        As text, JSON of role and text of the turns; empty where no conversation was written. One
        is ``finished`` if the model closed it by itself.
    """
    end = int(objective.tokenizer.eos_token_id)
    opening = "" if system is None else objective.form.opening(system)
    prompt = [end, *token_ids(objective.tokenizer, [opening])[0]]
    given = len(prompt) + getattr(model, "prefix_length", 0)
    key, out, new = keys.public_key(seed), list[Written](), settings.max_new_tokens
    if (most := text_room(model)) is not None:
        new = min(new, most - len(prompt))
    if new < 1:
        raise ConfigError(
            f"the system text takes {len(prompt):,} tokens with its template, and the model has "
            f"{most:,} positions in all; expected room for a conversation: shorten system"
        )
    with evaluating(model), own_settings(model, end, end):
        for number, first in enumerate(range(0, count, settings.rows)):
            torch.manual_seed(keys.seed(key, "conversations of a batch", number))
            rows = min(settings.rows, count - first)
            ids = torch.tensor([prompt] * rows, device=model.device)
            written = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                **how_to_choose(settings),
                eos_token_id=None,
                pad_token_id=end,
                stopping_criteria=StoppingCriteriaList([_Closed([end, *objective.closing], given)]),
            )[:, len(prompt) :]
            out += [_read(objective, opening, row) for row in written.tolist()]
            advance(rows)
    return out


class _Closed(StoppingCriteria):
    """Stops a row whose answer ends in ``pattern``; its first ``given`` tokens are the prompt."""

    def __init__(self, pattern: Sequence[int], given: int) -> None:
        self.given, self.pattern = given, torch.tensor(pattern)
        self.eos_token_id = pattern[0]  # transformers fills the rows that stopped if there is one

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        pattern = self.pattern.to(input_ids.device)
        long = input_ids.shape[1] >= self.given + len(pattern)
        return long & (input_ids[:, -len(pattern) :] == pattern[-input_ids.shape[1] :]).all(1)


def _read(objective: ChatObjective, opening: str, ids: list[int]) -> Written:
    """Return the conversation of a row, up to the last end token with which it is one."""
    tokenizer, end, tail = objective.tokenizer, objective.tokenizer.eos_token_id, objective.closing
    pattern = [end, *tail]
    starts = range(len(ids) - len(pattern) + 1)
    closed = next((i for i in starts if ids[i : i + len(pattern)] == pattern), None)
    stop = len(ids) if closed is None else closed + 1
    for last in reversed([i for i, token in enumerate(ids[:stop]) if token == end]):
        whole = [*ids[: last + 1], *tail[:-1]]
        # The tokens as they are: a tokenizer may take the blank before a full stop away.
        text = str(tokenizer.decode(whole, clean_up_tokenization_spaces=False))
        if (turns := objective.form.read(opening + text)) is not None:
            return Written(json.dumps(turns, ensure_ascii=False), last == closed)
    return Written("", False)
