"""Decoding: beam search or sampling over a task's prompts, batched and sorted by length."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config import Decode
from dpft.evaluation import evaluating

# Prompts end in the end token, which is the padding token too; where a batch needs no padding,
# transformers takes that for a forgotten attention mask. The mask is always passed.
logging.getLogger("transformers.modeling_utils").addFilter(
    lambda record: "recommend passing in an `attention_mask`" not in record.getMessage()
)


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[int, ...]],
    settings: Decode,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """One generated text for each prompt, in the prompts' order.

    Equal prompts are decoded once. Longest first, so that a batch that does not fit in memory
    fails at once and not after an hour.

    Args:
        model: a causal language model; left in training mode if it was.
        tokenizer: the model's.
        prompts: token ids, ending in whatever the model was trained to continue from.
        settings: ``conf/decode``.
        seed: for sampling.
        advance: told how many more prompts are done.
    """
    times = Counter(prompts)
    distinct = sorted(times, key=lambda prompt: (-len(prompt), prompt))
    texts: dict[tuple[int, ...], str] = {}
    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
    with evaluating(model):
        for start in range(0, len(distinct), settings.batch_size):
            batch = distinct[start : start + settings.batch_size]
            width = len(batch[0])
            ids = torch.full((len(batch), width), end, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, prompt in enumerate(batch):
                ids[row, width - len(prompt) :] = torch.tensor(prompt)
                mask[row, width - len(prompt) :] = 1
            room = getattr(model.config, "max_position_embeddings", width + settings.max_new_tokens)
            output = model.generate(  # type: ignore[operator]
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                num_beams=settings.beams,
                do_sample=settings.sample,
                top_p=settings.top_p if settings.sample else None,
                top_k=0 if settings.sample else None,
                length_penalty=settings.length_penalty if settings.beams > 1 else None,
                max_new_tokens=max(1, min(settings.max_new_tokens, room - width)),
                eos_token_id=end,
                pad_token_id=end,
            )
            replies = tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
            texts.update(zip(batch, (reply.strip() for reply in replies), strict=True))
            advance(sum(times[prompt] for prompt in batch))
    return [texts[prompt] for prompt in prompts]
