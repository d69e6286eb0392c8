"""Conditional generation with a causal language model: the loss is on the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.tasks.base import Batch, Example


def truncate(prompt: Sequence[int], target: Sequence[int], max_length: int) -> Example:
    """Cut to ``max_length`` tokens: first the end of the target, then the start of the prompt.

    At least one target token is kept, so that every record has a loss.
    """
    room = max(1, max_length - len(prompt))
    target = target[:room]
    prompt = prompt[max(0, len(prompt) + len(target) - max_length) :]
    return Example(tuple(prompt), tuple(target))


def collate(examples: Sequence[Example]) -> Batch:
    """Pad on the left, so that all targets end in the last column.

    The model then needs logits for the last ``K`` positions only, where ``K`` is the longest
    target: prompts pass no output head, which for a small model is much of the cost.

    Returns:
        ``input_ids``, ``attention_mask``, ``position_ids``: ``(B, L - 1)``, without the last token,
        which predicts nothing; ``targets``: ``(B, K)``, with -100 where a record has no target.
    """
    width = max(example.length for example in examples)
    longest_target = max(len(example.target) for example in examples)
    ids = torch.zeros(len(examples), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    targets = torch.full((len(examples), longest_target), -100, dtype=torch.long)
    for row, example in enumerate(examples):
        ids[row, width - example.length :] = torch.tensor(example.prompt + example.target)
        mask[row, width - example.length :] = 1
        targets[row, longest_target - len(example.target) :] = torch.tensor(example.target)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return Batch(
        {
            "input_ids": ids[:, :-1],
            "attention_mask": mask[:, :-1],
            "position_ids": positions[:, :-1],
            "targets": targets,
        }
    )


def losses(model: nn.Module, batch: Batch, reduction: str) -> Tensor:
    """Negative log-likelihood of each record's target tokens, summed or averaged: ``(B,)``.

    The average is over the record's own tokens. An average over the batch's tokens would couple
    records and void the guarantee.
    """
    tensors = batch.tensors
    targets = tensors["targets"]
    logits = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"],
        use_cache=False,
        logits_to_keep=targets.shape[1],
    ).logits
    nll = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-100
    ).view_as(targets)
    total = nll.sum(1)
    return total / (targets != -100).sum(1) if reduction == "mean" else total
