"""Decoding: beam search or sampling over a task's prompts, batched and sorted by length."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.schema import Decode
from dpft.privacy import keys
from dpft.privacy.precision import multiplies_halves
from dpft.tasks.objectives.evaluation import answered, evaluating
from dpft.tasks.objectives.objective import text_room
from dpft.tasks.objectives.tokens import pad
from dpft.tasks.views import blocks

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort

# Prompts end in the end token, which is the padding token too; where a batch needs no padding,
# transformers takes that for a forgotten attention mask. The mask is always passed.
logging.getLogger("transformers.modeling_utils").addFilter(
    lambda record: "recommend passing in an `attention_mask`" not in record.getMessage()
)


# Number of a batch, how many tokens each of its prompts may write, and the prompts.
_Batch = tuple[int, int, list[tuple[int, ...]]]


@dataclass(frozen=True)
class Written:
    """A generated text, and whether it came to its end: false where it was stopped before."""

    text: str
    finished: bool


class _Memory:
    """The memory that a prompt takes on a GPU, as the batches so far have shown."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._of_row = device, 1.0

    @property
    def limited(self) -> bool:
        """True if the device has separate memory, of which the free part is known."""
        return self._device.type == "cuda"

    @contextmanager
    def measured(self, rows: int) -> Iterator[None]:
        """Measure the decoding of so many prompts in this context."""
        if not self.limited:
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        yield
        used = torch.cuda.max_memory_allocated(self._device) - before
        self._of_row = max(self._of_row, used / rows)

    def rows_that_fit(self, least: int) -> int:
        """Return how many prompts fit in nine tenths of the free memory: ``least`` to 1,024."""
        free, _ = torch.cuda.mem_get_info(self._device)
        free += torch.cuda.memory_reserved(self._device)
        free -= torch.cuda.memory_allocated(self._device)
        return max(least, min(1024, int(0.9 * free / self._of_row)))


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[int, ...]],
    settings: Decode,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
    cohort: TrainingCohort | None = None,
) -> list[Written]:
    """Return one generated text for each prompt, in the prompts' order.

    Equal prompts are decoded once, and the longest first, so that a batch that does not fit in
    memory fails at once. Unless texts are sampled, the size of batches does not matter: all prompts
    of a batch may write equally much. With ``batch_size=auto`` the first batches show how many
    prompts fit. Each batch has its own seed, and so the same texts in any process of ``cohort``.
    The model's own generation config is not used.
    """
    times = Counter(prompts)
    texts: dict[tuple[int, ...], Written] = {}
    key, end = keys.public_key(seed), tokenizer.eos_token_id
    encoder = bool(getattr(model.config, "is_encoder_decoder", False))
    padding = tokenizer.pad_token_id if encoder else end
    start = model.config.decoder_start_token_id if encoder else None
    memory = _Memory(model.device)
    choice = {
        "num_beams": settings.beams,
        "do_sample": settings.sample,
        "top_p": settings.top_p if settings.sample else None,
        "top_k": 0 if settings.sample else None,
        "length_penalty": settings.length_penalty if settings.beams > 1 else None,
    }

    def write(batch: _Batch) -> list[tuple[str, bool]]:
        number, new, given = batch
        torch.manual_seed(keys.seed(key, "texts of a batch", number))
        width = len(given[0])
        # An encoder reads from the first column on; what a decoder writes follows the prompt.
        ids, mask = pad(given, width, padding, left=not encoder)
        with memory.measured(len(given)):
            output = model.generate(  # type: ignore[operator]
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=new,
                **choice,
                eos_token_id=end,
                pad_token_id=padding,
                **({"decoder_start_token_id": start} if encoder else {}),
            )[:, 1 if encoder else width :]
        # What is short may be padded with end tokens too: a row without any is one that had none.
        finished = (output == end).any(1).tolist()
        # The tokens as they are: a tokenizer may take the blank before a full stop away.
        replies = tokenizer.batch_decode(
            output, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return list(zip(map(str.strip, replies), finished, strict=True))

    longest_first = sorted(times, key=lambda prompt: (-len(prompt), prompt))
    size, parts, ranks = settings.rows, [longest_first], 1 if cohort is None else cohort.size
    if settings.batch_size == "auto" and not settings.sample and memory.limited:
        parts = [longest_first[: size * ranks], longest_first[size * ranks :]]
    narrow = settings.precision == "bfloat16" and multiplies_halves(model.device)
    with (
        evaluating(model),
        own_settings(model, end, padding, start),
        weights_in_bfloat16(model) if narrow else nullcontext(),
    ):
        for part in parts:
            batches = _batches(model, part, settings, encoder, size)
            for batch, replies in answered(batches, write, cohort):
                for prompt, reply in zip(batch[2], replies, strict=True):
                    texts[prompt] = Written(*reply)
                advance(sum(times[prompt] for prompt in batch[2]))
            if part is not parts[-1]:
                fits = memory.rows_that_fit(size)
                size = fits if cohort is None else min(cohort.all_gather(fits))
    return [texts[prompt] for prompt in prompts]


def _batches(
    model: PreTrainedModel,
    longest_first: Iterable[tuple[int, ...]],
    settings: Decode,
    encoder: bool,
    size: int,
) -> list[_Batch]:
    """Return batches of prompts after which equally many tokens may be written.

    Else a prompt that leaves the model little room would stop the other texts of its batch.
    """
    most = text_room(model)

    def room(prompt: tuple[int, ...]) -> int:
        if most is None:
            return settings.max_new_tokens
        # The decoder of a model with an encoder has separate positions.
        left = most if encoder else most - len(prompt)
        return max(1, min(settings.max_new_tokens, left))

    pieces = (
        (new, piece) for new, group in groupby(longest_first, room) for piece in blocks(group, size)
    )
    return [(number, new, piece) for number, (new, piece) in enumerate(pieces)]


@contextmanager
def weights_in_bfloat16(model: nn.Module) -> Iterator[None]:
    """Round the parameters of a model to bfloat16 in this context; give them back as they were.

    Buffers, such as frequencies of rotary positions, keep their type.
    """
    kept = [(parameter, parameter.data) for parameter in model.parameters()]
    try:
        for parameter, data in kept:
            if data.is_floating_point():
                parameter.data = data.bfloat16()
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


@contextmanager
def own_settings(
    model: nn.Module, end: int, padding: int, start: int | None = None
) -> Iterator[None]:
    """Replace a model's ``generation_config``: a temperature, a ban of repeated words.

    Transformers takes from there what a caller leaves open, even in a config that the caller
    passes. An adapted model has a second one, in the model that it wraps.
    """
    ours = GenerationConfig(eos_token_id=end, pad_token_id=padding, decoder_start_token_id=start)
    holders: list[Any] = [m for m in model.modules() if "generation_config" in vars(m)]
    theirs = [holder.generation_config for holder in holders]
    try:
        for holder in holders:
            holder.generation_config = ours
        yield
    finally:
        for holder, old in zip(holders, theirs, strict=True):
            holder.generation_config = old
