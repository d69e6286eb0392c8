"""Text classification as infilling: a masked language model fills a blank with a class's word.

The template and the words of Li et al. 2022 (table 10) are those of Gao et al. 2021, "Making
Pre-trained Language Models Better Few-shot Learners". No layer is new: the output head is that of
pretraining.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dpft.config.errors import ConfigError, ModelError
from dpft.privacy.shapes import padded
from dpft.tasks.objectives.base import Batch
from dpft.tasks.objectives.choice import Choice
from dpft.tasks.objectives.classifier import pad_right
from dpft.tasks.objectives.records import LabelledText
from dpft.tasks.objectives.template import MASK, Piece, check_words, parse_template

# The module with which transformers' masked language models begin what follows the encoder.
_HEADS = ("lm_head", "cls", "predictions", "generator_predictions", "vocab_transform", "head")


@dataclass(frozen=True)
class InfillExample:
    """An encoded record.

    Attributes:
        ids: tokens, special ones included.
        mask: position of the blank.
        label: index of the class.
        cut_source: how many tokens the texts lost at least, since the record is too long.
    """

    ids: tuple[int, ...]
    mask: int
    label: int
    cut_source: int = field(default=0, compare=False)

    @property
    def length(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Infilling(Choice):
    """One or two texts in, a class out: the class whose word is the most likely in the blank.

    The loss is the cross entropy over the words of the classes at the blank, not over the whole
    vocabulary.

    Args:
        tokenizer: a masked language model's.
        max_length: tokens of a record, special ones included; of two texts the longer is cut first,
            at its end, and the template never.
        template: see `dpft.tasks.objectives.template.parse_template`.
        label_words: the word of each class; looked up with a leading space, as in a sentence.
        classes: their names, in the order of labels.

    Raises:
        ConfigError: for an impossible template, for a class without a word, for a word that is not
            one token or that two classes share, and where the template alone fills ``max_length``.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    template: str
    label_words: Mapping[str, str]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        check_words(self.label_words, self.classes)
        fixed = sum(len(ids) for ids in self._fixed) + 2
        if fixed >= self.max_length:
            raise ConfigError(
                f"task.max_length is {self.max_length}, but the template alone takes {fixed} "
                f"tokens; type task.max_length={2 * fixed} or more"
            )
        _ = self.words

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The template's parts."""
        return parse_template(self.template)

    @cached_property
    def words(self) -> tuple[int, ...]:
        """The token of each class's word."""
        found: dict[int, str] = {}
        for name in self.classes:
            word = self.label_words[name]
            ids = self._ids(f" {word}")
            if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
                pieces = " ".join(self.tokenizer.convert_ids_to_tokens(ids))
                raise ConfigError(
                    f"task.label_words.{name} is {word!r}, which the model's tokenizer makes "
                    f"{pieces}; expected a word that is one token of its vocabulary"
                )
            if ids[0] in found:
                raise ConfigError(
                    f"task.label_words gives {found[ids[0]]} and {name} the same word: {word!r} is "
                    "one token for both; expected a word of its own for each class"
                )
            found[ids[0]] = name
        return tuple(found)

    def encode(self, record: LabelledText) -> InfillExample:
        pieces = list(zip(self.pieces, self._fixed, strict=True))
        if max(piece.text or 0 for piece in self.pieces) >= len(record.texts):
            raise ConfigError(
                f"task.template is {self.template!r}, but records have {len(record.texts)} text; "
                "leave <S2> out"
            )
        parts = [
            fixed if piece.text is None else self._ids(piece.of(record.texts))
            for piece, fixed in pieces
        ]
        texts = [i for i, piece in enumerate(self.pieces) if piece.text is not None]
        room = self.max_length - 2 - sum(len(fixed) for _, fixed in pieces)
        lengths = [len(parts[i]) for i in texts]
        cut = max(0, sum(lengths) - room)
        while sum(lengths) > room:
            longest = max(range(len(lengths)), key=lambda k: (lengths[k], k))
            lengths[longest] -= 1
        for i, length in zip(texts, lengths, strict=True):
            parts[i] = parts[i][:length]
        blank = next(i for i, piece in enumerate(self.pieces) if piece.words == MASK)
        ids = [self.tokenizer.cls_token_id, *(token for part in parts for token in part)]
        mask = 1 + sum(len(part) for part in parts[:blank])
        return InfillExample((*ids, self.tokenizer.sep_token_id), mask, record.label, cut)

    def collate(
        self, examples: Sequence[InfillExample], widths: Sequence[int] | None = None
    ) -> Batch:
        rows = [(e.ids, None) for e in examples]
        return Batch(
            {
                **pad_right(rows, self.tokenizer.pad_token_id, widths),
                "blank": torch.tensor([e.mask for e in examples]),
                "labels": torch.tensor([e.label for e in examples]),
            }
        )

    def widths(self, example: InfillExample) -> tuple[int]:
        return (padded(example.length, self.max_length),)

    def widest(self) -> tuple[int]:
        return (self.max_length,)

    def blank(self) -> InfillExample:
        """The blank that is to be filled in, and nothing else."""
        return InfillExample((self.tokenizer.mask_token_id,), 0, 0)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of the classes' words at the blank, ``(B, K)``."""
        blank = batch.tensors["blank"]
        inputs = {name: batch.tensors[name] for name in ("input_ids", "attention_mask")}
        with head_only_at(model, blank, inputs["input_ids"].shape[1]):
            logits: Tensor = model(**inputs).logits
        if logits.shape[1] > 1:
            logits = _at(logits, blank)
        return logits[:, 0, list(self.words)]

    @cached_property
    def _fixed(self) -> tuple[list[int], ...]:
        """Tokens of words and blank; none where a text stands."""
        return tuple(
            []
            if piece.text is not None
            else [self.tokenizer.mask_token_id]
            if piece.words == MASK
            else self._ids(piece.words)
            for piece in self.pieces
        )

    def _ids(self, text: str) -> list[int]:
        # Cut here already: no warning about long texts, and no time spent on them.
        encoded = self.tokenizer(
            text, add_special_tokens=False, truncation=True, max_length=self.max_length
        )
        ids: list[int] = encoded["input_ids"]
        return ids


@contextmanager
def head_only_at(model: nn.Module, positions: Tensor, width: int) -> Iterator[None]:
    """Within this context the model's output head sees one position of each record.

    Logits of a whole sequence are ``(B, T, V)``, by far the largest tensor of a small encoder. The
    head's input is replaced, and its layers are called as ever: whoever hooks them sees their calls
    with inputs ``(B, 1, d)``. A model without a head of a known name is left as it is.

    Args:
        model: a masked language model, adapted or not.
        positions: of the one position of each record, ``(B,)``.
        width: ``T``.

    Raises:
        ModelError: within the context, if the encoder's output has another length than its input.
    """

    def narrow(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or not isinstance(args[0], Tensor) or args[0].dim() != 3:
            return None
        if args[0].shape[1] != width:
            raise ModelError(
                f"the encoder gives {args[0].shape[1]} positions for {width} tokens, so that the "
                "blank cannot be found; expected an adapter that adds none, or task.mode=head"
            )
        return (_at(args[0], positions), *args[1:])

    heads = (getattr(model, name, None) for name in _HEADS)
    head = next((module for module in heads if isinstance(module, nn.Module)), None)
    handle = None if head is None else head.register_forward_pre_hook(narrow)
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def _at(x: Tensor, positions: Tensor) -> Tensor:
    """``(B, 1, d)`` of ``(B, T, d)``: each record's row at its position."""
    return x[torch.arange(len(x), device=x.device), positions].unsqueeze(1)
