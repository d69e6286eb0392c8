"""Classification: of texts by a new head, or by a blank that is filled in; and of images.

The templates and words of Li et al. 2022 (table 10) are those of Gao et al. 2021, "Making
Pre-trained Language Models Better Few-shot Learners".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dpft.config.errors import ConfigError
from dpft.config.schema import Decode
from dpft.privacy.sampling import padded
from dpft.tasks.objectives.evaluation import in_batches
from dpft.tasks.objectives.objective import Batch, Instance, Objective, Prediction
from dpft.tasks.objectives.record_types import (
    MASK,
    TEXTS,
    LabelledImage,
    LabelledText,
    parse_template,
)
from dpft.tasks.objectives.tokens import pad

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort


# The first module after the encoder in masked language models of transformers.
_HEADS = ("lm_head", "cls", "predictions", "generator_predictions", "vocab_transform", "head")


class Choice(Objective):
    """One of ``K`` classes for each record; batches hold their ``labels``, ``(B,)`` in int64."""

    classes: tuple[str, ...]  # their names, in the order of the scores

    @abstractmethod
    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return logits of the classes, ``(B, K)``; a row depends on its own record alone."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch.tensors["labels"]
        return F.cross_entropy(self.scores(model, batch), labels, reduction="none")

    @torch.no_grad()
    def predict(
        self,
        model: Any,
        instances: Sequence[Instance],
        settings: Decode,
        seed: int,
        advance: Callable[[int], None],
        cohort: TrainingCohort | None = None,
    ) -> list[Prediction]:
        """Return the most likely class of each instance, and the ``nll`` of the true class."""
        device = next(model.parameters()).device
        examples = [self.encode(instance.record) for instance in instances]

        def answer(chosen: list[int]) -> list[tuple[int, float, tuple[float, ...]]]:
            batch = self.collate([examples[i] for i in chosen]).to(device)
            logits = self.scores(model, batch).double()
            nll = F.cross_entropy(logits, batch.tensors["labels"], reduction="none")
            likely = [tuple(row) for row in logits.softmax(1).tolist()]
            return list(zip(logits.argmax(1).tolist(), nll.tolist(), likely, strict=True))

        found = in_batches(model, examples, settings.rows, answer, cohort, advance)
        return [
            Prediction(
                *(one.record.source, self.classes[index], one.references, one.subset),
                nll=nll,
                tokens=1,
                cut=example.cut_source > 0 if hasattr(example, "cut_source") else None,
                probabilities=likely,
            )
            for one, example, (index, nll, likely) in zip(instances, examples, found, strict=True)
        ]


@dataclass(frozen=True)
class ClassExample:
    """An encoded record."""

    ids: tuple[int, ...]  # tokens, special ones included
    # Which of two texts each token is of; None where the model does not ask for it.
    types: tuple[int, ...] | None
    label: int  # index of the class
    # How many tokens the texts lost at least, since the record is too long.
    cut_source: int = field(default=0, compare=False)
    mask: int = 0  # position of the blank, of infilling

    @property
    def length(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class TextChoice(Choice):
    """A choice for one or two texts of at most ``max_length`` tokens, special ones included."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: tuple[str, ...]

    def widths(self, example: ClassExample, coarse: bool = False) -> tuple[int]:
        return (padded(example.length, self.max_length, coarse),)

    def widest(self) -> tuple[int]:
        return (self.max_length,)

    def collate(
        self, examples: Sequence[ClassExample], widths: Sequence[int] | None = None
    ) -> Batch:
        """Pad tokens, and their types if any, on the right.

        Encoders count positions from the first column (BERT) or over what is not padding (RoBERTa):
        with the padding on the right, no record's positions depend on the length of another.

        Returns:
            ``input_ids`` and ``attention_mask``, and ``token_type_ids`` where examples have types:
            ``(B, T)``; ``blank`` and ``labels``: ``(B,)``.
        """
        (width,) = widths or (max(example.length for example in examples),)
        ids, mask = pad([one.ids for one in examples], width, self.tokenizer.pad_token_id)
        types = [one.types or (0,) * one.length for one in examples]  # padding examples have none
        typed = {} if examples[0].types is None else {"token_type_ids": pad(types, width, 0)[0]}
        blanks, labels = ([getattr(e, name) for e in examples] for name in ("mask", "label"))
        one_each = {"blank": torch.tensor(blanks), "labels": torch.tensor(labels)}
        return Batch({"input_ids": ids, "attention_mask": mask, **typed, **one_each})


@dataclass(frozen=True)
class Classifier(TextChoice):
    """One or two texts in, a class out, by a model with a classification head."""

    def encode(self, record: LabelledText) -> ClassExample:
        encoded = self.tokenizer(*record.texts, verbose=False)
        whole = len(encoded["input_ids"])
        if whole > self.max_length:
            special = self.tokenizer.num_special_tokens_to_add(pair=len(record.texts) > 1)
            if self.max_length < special + len(record.texts):
                raise ConfigError(
                    f"task.max_length is {self.max_length}, of which the model's own tokens take "
                    f"{special}; expected {special + len(record.texts)} or more"
                )
            encoded = self.tokenizer(
                *record.texts, truncation="longest_first", max_length=self.max_length
            )
        ids, types = tuple(encoded["input_ids"]), encoded.get("token_type_ids")
        return ClassExample(
            ids, None if types is None else tuple(types), record.label, whole - len(ids)
        )

    def encode_all(self, records: Sequence[LabelledText]) -> list[ClassExample]:
        texts = [[*some] for some in zip(*(record.texts for record in records), strict=True)]
        if not all(map(all, texts)):  # an empty second text is none for the tokenizer
            return [self.encode(record) for record in records]
        encoded = self.tokenizer(*texts, return_attention_mask=False, verbose=False)
        types = encoded.get("token_type_ids")
        return [
            ClassExample(tuple(ids), None if types is None else tuple(types[n]), record.label)
            if len(ids) <= self.max_length
            else self.encode(record)
            for n, (record, ids) in enumerate(zip(records, encoded["input_ids"], strict=True))
        ]

    def blank(self) -> ClassExample:
        return ClassExample((self.tokenizer.pad_token_id,), None, 0)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        others = ("blank", "labels", "weights")
        inputs = {name: x for name, x in batch.tensors.items() if name not in others}
        logits: Tensor = model(**inputs).logits
        return logits


@dataclass(frozen=True)
class Infilling(TextChoice):
    """One or two texts in, a class out: the class whose word is the most likely in the blank.

    The loss is the cross entropy over the words of the classes at the blank, not over the whole
    vocabulary. No layer is new: the output head is that of pretraining.

    Of two texts that are too long the longer is cut first, at its end, and the template never.

    Args:
        template: see `dpft.tasks.objectives.record_types.parse_template`.
        label_words: the word of each class; looked up with a leading space, as in a sentence.
    """

    template: str
    label_words: Mapping[str, str]

    def __post_init__(self) -> None:
        fixed = sum(len(ids) for ids in self._fixed) + 2
        if fixed >= self.max_length:
            raise ConfigError(
                f"task.max_length is {self.max_length}, but the template alone takes {fixed} "
                f"tokens; type task.max_length={2 * fixed} or more"
            )
        _ = self.words

    @cached_property
    def pieces(self) -> tuple[str, ...]:
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
                    "one token for both; expected a different word for each class"
                )
            found[ids[0]] = name
        return tuple(found)

    @cached_property
    def _fixed(self) -> tuple[list[int], ...]:
        """Tokens of words and blank; none in place of a text."""
        mask = [self.tokenizer.mask_token_id]
        return tuple(
            [] if piece.strip() in TEXTS else mask if piece == MASK else self._ids(piece)
            for piece in self.pieces
        )

    def encode(self, record: LabelledText) -> ClassExample:
        parts = [[*fixed] for fixed in self._fixed]
        texts = {i: TEXTS[p.strip()] for i, p in enumerate(self.pieces) if p.strip() in TEXTS}
        for i, number in texts.items():
            space = " " * self.pieces[i].startswith(" ")
            parts[i] = self._ids(space + record.texts[number].strip())
        cut = max(0, sum(map(len, parts)) - (self.max_length - 2))
        for _ in range(cut):
            parts[max(texts, key=lambda i: (len(parts[i]), i))].pop()
        blank = self.pieces.index(MASK)
        ids = [self.tokenizer.cls_token_id, *(token for part in parts for token in part)]
        mask = 1 + sum(len(part) for part in parts[:blank])
        return ClassExample((*ids, self.tokenizer.sep_token_id), None, record.label, cut, mask)

    def blank(self) -> ClassExample:
        return ClassExample((self.tokenizer.mask_token_id,), None, 0)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        blank = batch.tensors["blank"]
        inputs = {name: batch.tensors[name] for name in ("input_ids", "attention_mask")}
        with head_only_at(model, blank):
            logits: Tensor = model(**inputs).logits
        if logits.shape[1] > 1:
            logits = _at(logits, blank)
        return logits[:, 0, list(self.words)]

    def _ids(self, text: str) -> list[int]:
        # Cut here already: no warning about long texts, and no time spent on them.
        encoded = self.tokenizer(
            text, add_special_tokens=False, truncation=True, max_length=self.max_length
        )
        ids: list[int] = encoded["input_ids"]
        return ids


@contextmanager
def head_only_at(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Pass one position of each record to the model's output head.

    Logits of a whole sequence are ``(B, T, V)``, by far the largest tensor of a small encoder. The
    head's input is replaced, and its layers are called as ever: hooks on them see their calls with
    inputs ``(B, 1, d)``. A model without a head of a known name is left as it is.
    """

    def narrow(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or not isinstance(args[0], Tensor) or args[0].dim() != 3:
            return None
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
    """Return ``(B, 1, d)`` of ``(B, T, d)``: each record's row at its position."""
    return x[torch.arange(len(x), device=x.device), positions].unsqueeze(1)


@dataclass(frozen=True, eq=False)
class ImageExample:
    """A record on its way into a batch; pixels are made when the batch is."""

    record: LabelledImage  # the image and its class
    length: int  # patches of the image, and one for the class token


@dataclass(frozen=True)
class ImageClassifier(Choice):
    """An image in, a class out.

    Guarantee: a row of a batch is a function of its image alone. Images are decoded, resized and
    normalised one by one, and nothing is cropped, flipped or mixed at random.
    """

    size: int  # pixels a side of the model's input, to which images are resized
    # Subtracted from each channel of values between 0 and 1, and its divisor after that: constants
    # of the model, since the mean of the private images would be a release.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    patch: int  # pixels a side of a patch; with `size` it says how much memory an image takes
    classes: tuple[str, ...]  # in the order of the model's outputs

    def encode(self, record: LabelledImage) -> ImageExample:
        return ImageExample(record, *self.widest())

    def widths(self, example: ImageExample, coarse: bool = False) -> tuple[int]:
        return self.widest()

    def widest(self) -> tuple[int]:
        return ((self.size // self.patch) ** 2 + 1,)

    def blank(self) -> ImageExample:
        black = np.zeros((self.size, self.size, 3), dtype=np.uint8)
        return self.encode(LabelledImage(black, 0, ""))

    def collate(
        self, examples: Sequence[ImageExample], widths: Sequence[int] | None = None
    ) -> Batch:
        """Return ``pixels`` (``(B, 3, size, size)``, float32) and ``labels`` (``(B,)``, int64)."""
        stacked = np.stack([example.record.pixels(self.size) for example in examples])
        # Planes first, while a number is still one byte.
        pixels = torch.from_numpy(stacked.transpose(0, 3, 1, 2).copy()).float()
        mean, std = (torch.tensor(c).view(-1, 1, 1) for c in (self.mean, self.std))
        return Batch(
            {
                "pixels": pixels.div_(255).sub_(mean).div_(std),
                "labels": torch.tensor([example.record.label for example in examples]),
            }
        )

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return logits of the classes, ``(B, K)``."""
        output = model(batch.tensors["pixels"])
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits
