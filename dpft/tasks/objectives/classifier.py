"""Text classification with a new head: the loss is the cross entropy of the record's class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dpft.config.errors import ConfigError
from dpft.privacy.shapes import padded
from dpft.tasks.objectives.base import Batch
from dpft.tasks.objectives.choice import Choice
from dpft.tasks.objectives.records import LabelledText
from dpft.tasks.objectives.tokens import fast_backend


@dataclass(frozen=True)
class ClassExample:
    """An encoded record.

    Attributes:
        ids: tokens, special ones included.
        types: which of two texts each token is of; None where the model does not ask for it.
        label: index of the class.
        cut_source: how many tokens the texts lost, since the record is too long.
    """

    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    label: int
    cut_source: int = field(default=0, compare=False)

    @property
    def length(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Classifier(Choice):
    """One or two texts in, a class out, by a model with a classification head.

    Args:
        tokenizer: the model's, with a padding token.
        max_length: tokens of a record, special ones included; of two texts the longer is cut first.
        classes: their names, in the order of the head's outputs.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    classes: tuple[str, ...]

    def encode(self, record: LabelledText) -> ClassExample:
        encoded = self.tokenizer(*record.texts, verbose=False)
        whole = len(encoded["input_ids"])
        if whole > self.max_length:
            self._check_room(record)
            encoded = self.tokenizer(
                *record.texts, truncation="longest_first", max_length=self.max_length
            )
        ids, types = tuple(encoded["input_ids"]), encoded.get("token_type_ids")
        return ClassExample(
            ids, None if types is None else tuple(types), record.label, whole - len(ids)
        )

    def encode_all(self, records: Sequence[LabelledText]) -> list[ClassExample]:
        backend = fast_backend(self.tokenizer)
        if backend is None:
            return [self.encode(record) for record in records]
        # Two texts as a pair; for transformers an empty second text is none.
        texts = [r.texts if all(r.texts[1:]) and len(r.texts) > 1 else r.texts[0] for r in records]
        typed = "token_type_ids" in self.tokenizer.model_input_names
        return [
            ClassExample(
                tuple(encoding.ids), tuple(encoding.type_ids) if typed else None, record.label
            )
            if len(encoding.ids) <= self.max_length
            else self.encode(record)
            for record, encoding in zip(records, backend.encode_batch_fast(texts), strict=True)
        ]

    def _check_room(self, record: LabelledText) -> None:
        texts = len(record.texts)
        special = self.tokenizer.num_special_tokens_to_add(pair=texts > 1)
        if self.max_length < special + texts:
            raise ConfigError(
                f"task.max_length is {self.max_length}, of which the model's own tokens take "
                f"{special}; expected room for a token of each text: {special + texts} or more"
            )

    def collate(
        self, examples: Sequence[ClassExample], widths: Sequence[int] | None = None
    ) -> Batch:
        rows = [(e.ids, e.types) for e in examples]
        return Batch(
            {
                **pad_right(rows, self.tokenizer.pad_token_id, widths),
                "labels": torch.tensor([e.label for e in examples]),
            }
        )

    def widths(self, example: ClassExample) -> tuple[int]:
        return (padded(example.length, self.max_length),)

    def widest(self) -> tuple[int]:
        return (self.max_length,)

    def blank(self) -> ClassExample:
        return ClassExample((self.tokenizer.pad_token_id,), None, 0)

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of the classes, ``(B, K)``."""
        inputs = {name: x for name, x in batch.tensors.items() if name != "labels"}
        logits: Tensor = model(**inputs).logits
        return logits


def pad_right(
    rows: Sequence[tuple[Sequence[int], Sequence[int] | None]],
    padding: int,
    widths: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Tokens, and their types where there are any, padded on the right.

    Encoders count positions from the first column (BERT) or over what is not padding (RoBERTa):
    with the padding on the right, no record's positions depend on the length of another.

    Args:
        rows: tokens and types; types of all that is text, or of nothing.
        padding: the token that pads.
        widths: ``T`` alone; None: the most tokens in a row.

    Returns:
        ``input_ids`` and ``attention_mask``, and ``token_type_ids`` where rows have types:
        ``(B, T)``.
    """
    (width,) = widths or (max(len(ids) for ids, _ in rows),)
    ids = torch.full((len(rows), width), padding, dtype=torch.long)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (tokens, kinds) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
        if kinds is not None:
            types[row, : len(tokens)] = torch.tensor(kinds)
    padded = {"input_ids": ids, "attention_mask": mask}
    if rows[0][1] is not None:
        padded["token_type_ids"] = types
    return padded


def check_positions(model: nn.Module, max_length: int) -> None:
    """Refuse records that may be longer than the model has positions for.

    Raises:
        ConfigError: naming the largest ``task.max_length``.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa's positions begin after that of the padding.
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            if max_length > module.num_embeddings - first:
                raise ConfigError(
                    f"task.max_length is {max_length}, but the model has positions for "
                    f"{module.num_embeddings - first} tokens; type "
                    f"task.max_length={module.num_embeddings - first}"
                )
