"""Conditional generation, by a decoder alone or behind an encoder: the loss is on the target.

With an encoder (T5, BART) the encoder reads the source, the decoder the target as far as it is
written. Padding is on the right of both: BART counts positions from the first column, and what
comes later no position of a decoder sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dpft.config.schema import Decode
from dpft.privacy.sampling import padded
from dpft.privacy.token_losses import token_losses
from dpft.tasks.objectives.decode import decode
from dpft.tasks.objectives.evaluation import in_batches
from dpft.tasks.objectives.objective import Batch, Instance, Prediction
from dpft.tasks.objectives.record_types import TextRecord
from dpft.tasks.objectives.tokens import around, ids_behind, joins, pad, token_ids

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort


@dataclass(frozen=True)
class CausalExample:
    """An encoded record: the loss is taken on ``target`` given ``prompt``."""

    prompt: tuple[int, ...]  # what is given
    target: tuple[int, ...]  # what is written
    # Positions in the target that carry no loss, such as what others say in a chat.
    silent: tuple[int, ...] = ()
    # How many tokens the source lost, since the record is too long.
    cut_source: int = field(default=0, compare=False)
    # How many the end of the target lost; its end token is the first.
    cut_target: int = field(default=0, compare=False)
    # How many answers carry no loss, since the template writes them in another way by then.
    untrained: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not self.prompt or not self.target:
            # A first token that follows nothing but padding has a loss that depends on the batch.
            raise ValueError("got an empty prompt or target; expected at least one token of each")

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.target)

    @property
    def counted(self) -> int:
        """Tokens that carry loss."""
        return len(self.target) - len(self.silent)


@dataclass(frozen=True)
class Causal:
    """Write the target after the source.

    A prompt is ``before``, the segments of the source, and ``after``. The target begins with a
    space, unless the text right before it ends in one, and ends with the end token.
    """

    tokenizer: PreTrainedTokenizerBase  # with an end token
    max_length: int  # tokens of prompt and target together
    loss: str = "mean"  # or sum, over a record's own target tokens
    before: str = ""  # an instruction, which is never cut
    after: str = ""  # a delimiter, which is never cut
    ends: bool = True  # whether the end token follows each segment
    # What is cut first where a record is too long: the end of the target, or the start of the
    # source, of a long dialogue.
    cut: str = "target"
    # How many of the first segments stay when the source is cut: a persona before a dialogue. They
    # get at most half of max_length, and lose their end beyond that.
    keep: int = 0
    # Tokens left for the answer where a prompt to answer is cut; None: see `longest`.
    room: int | None = None
    perplexity: bool = False  # whether predictions carry the likelihood of their first reference
    positions: int | None = None  # of the model, for prompt and answer together; None: no limit

    def encode(self, record: TextRecord) -> CausalExample:
        return self.encode_all([record])[0]

    def encode_all(self, records: Sequence[Any]) -> list[CausalExample]:
        texts, behind = list[str](), list[str]()
        for record in records:
            texts += [*record.segments, self._space(record) + record.target]
            behind += self._behind(record)
        ids = iter(self._ids(texts, behind))
        examples = []
        for record in records:
            before, source, after, lost = self._pieces([next(ids) for _ in record.segments])
            whole = self._whole(next(ids))
            fixed = len(before) + len(after)
            # At least one target token is kept, so that every record has a loss, and one before it.
            given = fixed + len(source) if self.cut == "target" else max(1, fixed)
            target = whole[: max(1, self.max_length - given)]
            kept = self._cut(source, fixed, len(target))
            examples.append(
                CausalExample(
                    (*before, *kept, *after),
                    tuple(target),
                    cut_source=lost + len(source) - len(kept),
                    cut_target=len(whole) - len(target),
                )
            )
        return examples

    def prompts(
        self, records: Sequence[Any], settings: Decode
    ) -> list[tuple[tuple[int, ...], int]]:
        """Return prompts of `longest` tokens at most, and how many tokens each lost."""
        longest = self.longest(settings)
        return [self._prompt(record, longest) for record in records]

    def longest(self, settings: Decode) -> int:
        """Return how many tokens a prompt to answer may have: as many as in training.

        Where sources are cut, fewer if the model has no positions for ``max_new_tokens`` after it,
        but not fewer than half of ``max_length``.
        """
        half = self.max_length - self.max_length // 2
        most = max(1, self.max_length - 1)
        if self.room is not None and self.cut == "source":
            return max(half, self.max_length - self.room)
        if self.positions is None or self.cut == "target":
            return most
        return min(most, max(half, self.positions - settings.max_new_tokens))

    def collate(
        self, examples: Sequence[CausalExample], widths: Sequence[int] | None = None
    ) -> Batch:
        return collate(examples, widths)

    def widths(self, example: CausalExample, coarse: bool = False) -> tuple[int, ...]:
        """Return the widths of prompt and target together, and of the target."""
        width = padded(example.length, self.max_length, coarse)
        if coarse:
            return width, width - 1
        return width, min(padded(len(example.target), self.max_length), width - 1)

    def widest(self) -> tuple[int, int]:
        return self.max_length, self.max_length - 1

    def blank(self) -> CausalExample:
        return CausalExample((self._end,), (self._end,))

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        total = self.nll(model, batch).sum(1)
        if self.loss == "sum":
            return total
        # Over the record's own tokens: an average over the batch's would couple records.
        return total / (batch.tensors["targets"] != -100).sum(1)

    def nll(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of target tokens, ``(B, K)``; see `token_nll`."""
        return token_nll(model, batch)

    def predict(
        self,
        model: Any,
        instances: Sequence[Instance],
        settings: Decode,
        seed: int,
        advance: Callable[[int], None],
        cohort: TrainingCohort | None = None,
    ) -> list[Prediction]:
        prompts = self.prompts([instance.record for instance in instances], settings)
        ids = [prompt for prompt, _ in prompts]
        texts = decode(model, self.tokenizer, ids, settings, seed, advance, cohort)
        likelihoods: Sequence[tuple[float | None, int | None]] = [(None, None)] * len(instances)
        if self.perplexity and all(instance.references for instance in instances):
            likelihoods = self.likelihoods(model, instances, settings.rows, cohort)
        return [
            Prediction(
                *(one.record.source, written.text, one.references, one.subset, nll, tokens),
                finished=written.finished,
                cut=lost > 0,
            )
            for one, (_, lost), written, (nll, tokens) in zip(
                instances, prompts, texts, likelihoods, strict=True
            )
        ]

    @torch.no_grad()
    def likelihoods(
        self,
        model: nn.Module,
        instances: Sequence[Instance],
        batch_size: int,
        cohort: TrainingCohort | None = None,
    ) -> list[tuple[float, int]]:
        """Return the negative log-likelihood of each first reference, and its number of tokens."""
        device = next(model.parameters()).device
        examples = self.encode_all([self._referenced(instance) for instance in instances])

        def answer(chosen: list[int]) -> list[float]:
            batch = self.collate([examples[i] for i in chosen]).to(device)
            sums: list[float] = self.nll(model, batch).double().sum(1).tolist()
            return sums

        sums = in_batches(model, examples, batch_size, answer, cohort)
        return [(nll, one.counted) for nll, one in zip(sums, examples, strict=True)]

    def _referenced(self, instance: Instance) -> Any:
        """Return the record whose target is the first reference."""
        return TextRecord(instance.record.segments, instance.references[0])

    def _pieces(self, segments: Sequence[list[int]]) -> tuple[list[int], list[int], list[int], int]:
        """Return the part before what may be cut, that part, the part after, and cut tokens."""
        ended = self._ended(segments)
        whole = [*chain.from_iterable(ended[: self.keep])]
        kept = whole[: self.max_length // 2]
        source = [*chain.from_iterable(ended[self.keep :])]
        first, after = self._frame
        before = [*first, *kept]
        if not (before or source or after):
            source = [self._end]
        return before, source, after, len(whole) - len(kept)

    def _ended(self, segments: Sequence[list[int]]) -> list[list[int]]:
        """Return the segments, each with what follows it."""
        end = [self._end] if self.ends else []
        return [[*segment, *end] for segment in segments]

    def _whole(self, written: list[int]) -> list[int]:
        """Return all that is to be written: the target with its end."""
        return [*written, self._end]

    def _space(self, record: TextRecord) -> str:
        """Return what keeps the target from being a part of the word before it."""
        last = self.after
        if not (self.after or self.ends):
            last = next(filter(None, (*reversed(record.segments), self.before)), "")
        return "" if last[-1:].isspace() else " "

    def _behind(self, record: TextRecord) -> list[str]:
        """Return a text that each segment and the target may be encoded behind; "" at the start."""
        between, count = str(self.tokenizer.eos_token) if self.ends else "\n", len(record.segments)
        return [*[self.before, *[between] * count][:count], self.after or between]

    @cached_property
    def _end(self) -> int:  # the tokenizer takes a microsecond to look it up
        return int(self.tokenizer.eos_token_id)

    @cached_property
    def _frame(self) -> list[list[int]]:
        """Tokens of ``before``, behind those that begin every text of the tokenizer, and ``after``.

        Tokenizers of Llama and Gemma put a start token before a text.
        """
        behind = str(self.tokenizer.eos_token) if self.ends else "a"
        before, after = self._ids((self.before, self.after), ("", behind))
        return [[*self._start, *before], after]

    @cached_property
    def _start(self) -> list[int]:
        return around(self.tokenizer, target=False)[0]

    @cached_property
    def _joins(self) -> bool:
        return joins(self.tokenizer)

    def _ids(self, texts: Sequence[str], behind: Sequence[str]) -> list[list[int]]:
        """Return the tokens of pieces of texts, each as it is behind another text."""
        if self._joins:
            return token_ids(self.tokenizer, texts)
        return ids_behind(self.tokenizer, texts, behind)

    def _prompt(self, record: Any, longest: int) -> tuple[tuple[int, ...], int]:
        """Return a prompt, and how many tokens its source lost."""
        segments = self._ids(record.segments, self._behind(record)[:-1])
        before, source, after, lost = self._pieces(segments)
        kept = self._cut(source, len(before) + len(after), self.max_length - longest)
        return (*before, *kept, *after), lost + len(source) - len(kept)

    def _cut(self, source: list[int], fixed: int, written: int) -> list[int]:
        excess = fixed + len(source) + written - self.max_length
        return source[max(0, excess) :]


@dataclass(frozen=True)
class LanguageModel(Causal):
    """Write a whole text, given what the tokenizer begins one with, or else the end token alone.

    A text that is longer than ``max_length`` is cut, and the end token with it. Predictions hold
    the likelihood of the reference over the tokens that were kept, and no text.
    """

    def encode_all(self, records: Sequence[TextRecord]) -> list[CausalExample]:
        end = self.tokenizer.eos_token_id
        targets = [[*ids, end] for ids in token_ids(self.tokenizer, [r.target for r in records])]
        kept = [tuple(target[: self.max_length - len(self.opening)]) for target in targets]
        return [
            CausalExample(self.opening, some, cut_target=len(target) - len(some))
            for target, some in zip(targets, kept, strict=True)
        ]

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """The tokens that a text follows."""
        return tuple(self._start) or (self.tokenizer.eos_token_id,)

    def _prompt(self, record: Any, longest: int) -> tuple[tuple[int, ...], int]:
        return self.opening, 0

    def predict(
        self,
        model: Any,
        instances: Sequence[Instance],
        settings: Decode,
        seed: int,
        advance: Callable[[int], None],
        cohort: TrainingCohort | None = None,
    ) -> list[Prediction]:
        likelihoods = self.likelihoods(model, instances, settings.rows, cohort)
        advance(len(instances))
        examples = self.encode_all([self._referenced(instance) for instance in instances])
        return [
            Prediction("", "", one.references, one.subset, nll, tokens, cut=example.cut_target > 0)
            for one, (nll, tokens), example in zip(instances, likelihoods, examples, strict=True)
        ]


def collate(examples: Sequence[CausalExample], widths: Sequence[int] | None = None) -> Batch:
    """Pad on the left, so that all targets end in the last column.

    The model then needs logits for the last ``K`` positions only, where ``K`` is the longest
    target: prompts pass no output head, which for a small model is much of the cost.

    Returns:
        ``input_ids``, ``attention_mask``, ``position_ids``: ``(B, L - 1)``, without the last token,
        which predicts nothing; ``targets``: ``(B, K)``, with -100 where a record has no target, or
        a silent one. ``widths`` are ``L`` and ``K``.
    """
    width, longest_target = widths or (
        max(example.length for example in examples),
        max(len(example.target) for example in examples),
    )
    ids, mask = pad([one.prompt + one.target for one in examples], width, 0, left=True)
    targets, _ = pad([one.target for one in examples], longest_target, -100, left=True)
    for row, example in enumerate(examples):
        if example.silent:
            first = longest_target - len(example.target)
            targets[row, first + torch.tensor(example.silent)] = -100
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    read = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    return Batch({**{name: x[:, :-1] for name, x in read.items()}, "targets": targets})


def token_nll(model: nn.Module, batch: Batch) -> Tensor:
    """Return the negative log-likelihood of each target token, ``(B, K)``; zero for none."""
    targets = batch.tensors["targets"]
    read = {name: batch.tensors[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**read, use_cache=False, logits_to_keep=targets.shape[1]).logits
    if logits.shape[1] > targets.shape[1]:  # some models do not do as they are asked
        logits = logits[:, -targets.shape[1] :]
    return token_losses(logits, targets)


@dataclass(frozen=True)
class EncoderDecoder(Causal):
    """Write the target, given the source.

    A source is ``before``, the segments and ``after``, with the tokens around it that the tokenizer
    puts around a text (``text </s>`` for T5, ``<s> text </s>`` for BART). With ``ends`` the end
    token comes between segments. A target has the tokens around it that the tokenizer puts around
    one; all are written but for ``start``. ``max_length`` is of source and target together.
    """

    start: int = 0

    def collate(
        self, examples: Sequence[CausalExample], widths: Sequence[int] | None = None
    ) -> Batch:
        """Pad sources and targets on the right.

        Returns:
            ``input_ids``, ``attention_mask``: ``(B, S)``; ``decoder_input_ids``, ``targets``:
            ``(B, K)``, the latter with -100 where a record has no target.
        """
        _, sources, longest = widths or (
            0,
            max(len(example.prompt) for example in examples),
            max(len(example.target) for example in examples),
        )
        padding = int(self.tokenizer.pad_token_id)
        ids, mask = pad([one.prompt for one in examples], sources, padding)
        given, _ = pad([(self.start, *one.target[:-1]) for one in examples], longest, padding)
        targets, _ = pad([one.target for one in examples], longest, -100)
        read = {"input_ids": ids, "attention_mask": mask}
        return Batch({**read, "decoder_input_ids": given, "targets": targets})

    def widths(self, example: CausalExample, coarse: bool = False) -> tuple[int, ...]:
        """Return the widths of both texts together, of the source, and of the target."""
        source = padded(len(example.prompt), self.max_length, coarse)
        target = padded(len(example.target), self.max_length, coarse)
        return source + target, source, target

    def nll(self, model: nn.Module, batch: Batch) -> Tensor:
        targets = batch.tensors["targets"]
        given = {name: x for name, x in batch.tensors.items() if name != "targets"}
        logits = model(**given, use_cache=False).logits
        return token_losses(logits, targets)

    def _ended(self, segments: Sequence[list[int]]) -> list[list[int]]:
        if not self.ends or not segments:
            return list(segments)
        last = [self._end] if self.after else []  # else the tokenizer's own end follows
        return [*([*segment, self._end] for segment in segments[:-1]), [*segments[-1], *last]]

    def _whole(self, written: list[int]) -> list[int]:
        first, last = self._around_target
        return [*first, *written, *last]

    def _space(self, record: TextRecord) -> str:
        return ""  # nothing is written before it

    def _behind(self, record: TextRecord) -> list[str]:
        return [""] * (1 + len(record.segments))

    @cached_property
    def _frame(self) -> list[list[int]]:
        before, after = super()._frame
        return [before, [*after, *around(self.tokenizer, target=False)[1]]]

    @cached_property
    def _around_target(self) -> tuple[list[int], list[int]]:
        first, last = around(self.tokenizer, target=True)
        return first, last if self._end in last else [*last, self._end]
