"""Objectives turn records into examples, losses and predictions.

Guarantee: the loss of a record depends on that record alone, not on the padding, positions or
averages of its batch.

All training records are encoded in pieces, into tables on disk (`encode_all`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from dpft.config.schema import Decode
from dpft.tasks.table_files import on_disk
from dpft.tasks.views import IntArray, View, blocks

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dpft.parallel.cohort import TrainingCohort


@dataclass(frozen=True)
class Instance:
    """One question of an evaluation."""

    record: Any  # what the model is given; its target is not shown to it
    references: tuple[str, ...]  # every right answer; none where none is known
    # The part of the split that it belongs to, where parts are scored by themselves.
    subset: str = ""


@dataclass(frozen=True)
class Question:
    """A row that a trained model is asked about, whose answer need not be known."""

    cells: Mapping[str, Any]  # of the row, by column, to be written next to the answer
    instance: Instance  # the question, without references unless they are what is asked about


@dataclass(frozen=True)
class Prediction:
    """The model's answer to an `Instance`."""

    source: str  # the question, as text
    prediction: str  # the answer: a generated text, or the name of a class
    references: tuple[str, ...]  # every right answer
    subset: str = ""  # as in the instance
    # Negative log-likelihood of the first reference; None where it was not computed.
    nll: float | None = None
    tokens: int | None = None  # how many tokens ``nll`` is a sum over
    # Whether a generated text came to its end, or was stopped; None: no such text.
    finished: bool | None = None
    # Whether the question was too long for the model and lost a part; None: not known.
    cut: bool | None = None
    # Of all classes, in the order of the objective; none of a generated text, and none where
    # a predictions file was read.
    probabilities: tuple[float, ...] = field(default=(), compare=False)


def text_room(model: Any) -> int | None:
    """Return the tokens that a model has positions for, behind a prefix; None: no limit.

    With encoder and decoder, it is the limit of either text.
    """
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    return None if positions is None else positions - getattr(model, "prefix_length", 0)


def texts(predictions: Sequence[Prediction]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return answers and references as metrics take them."""
    return [p.prediction for p in predictions], [p.references for p in predictions]


@dataclass(frozen=True)
class Batch:
    """Model inputs for ``B`` records; every tensor has ``B`` rows."""

    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def to(self, device: torch.device) -> Batch:
        from dpft.privacy.precision import on_device

        return Batch({name: on_device(x, device) for name, x in self.tensors.items()})

    def rows(self, index: Tensor) -> Batch:
        """Return the rows of ``index`` (int64, or bool of shape ``(B,)``)."""
        return Batch({name: tensor[index] for name, tensor in self.tensors.items()})


class Losses(Protocol):
    """The methods that training calls once records are encoded."""

    def collate(self, examples: Sequence[Any], widths: Sequence[int] | None = None) -> Batch:
        """Return examples as a batch, padded to ``widths``; None: to the widest of them."""

    def widths(self, example: Any, coarse: bool = False) -> tuple[int, ...]:
        """Return the padded widths of an example as a function of that example alone.

        Positions come first. No example with a loss is narrower than `blank`. There are few
        ``coarse`` widths: each is compiled.
        """

    def widest(self) -> tuple[int, ...]:
        """Return widths that any example fits in, from settings and model alone."""

    def blank(self) -> Any:
        """Return a padding example with a finite loss, which is no record."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return one loss per row, ``(B,)``, nothing summed or averaged across rows."""


class Objective(Losses, Protocol):
    """Made by a task for one model; see `dpft.tasks.objectives.generation.Causal`.

    It may have ``encode_all(records)``, which does the same as ``encode`` for several at once.
    """

    def encode(self, record: Any) -> Any:
        """Return a record as an example, whose ``length`` is its number of tokens or patches."""

    def predict(
        self,
        model: Any,
        instances: Sequence[Instance],
        settings: Decode,
        seed: int,
        advance: Callable[[int], None],
        cohort: TrainingCohort | None = None,
    ) -> list[Prediction]:
        """Answer every instance, in order.

        The model is left in training mode if it was. ``seed`` is that of sampling, and ``advance``
        is called with the number of instances that are done. All processes of ``cohort`` return all
        answers (`dpft.tasks.objectives.evaluation`).
        """


def cut_in_encoding(examples: Sequence[Any]) -> str:
    """Return sentences on what of records is not trained, "" if all is: private, as records are."""
    sources, targets, passed = (
        np.count_nonzero(values(examples, name) > 0)
        for name in ("cut_source", "cut_target", "untrained")
    )
    found = []
    if sources or targets:
        found.append(
            f"of {len(examples):,} training records, {sources:,} lost a part of their source and "
            f"{targets:,} the end of their target: longer than task.max_length, or than the model "
            "reads"
        )
    if passed:
        found.append(
            f"of {passed:,} conversations only the last answer is trained: the chat template "
            "writes earlier turns in another way once a later one follows, so that they would be "
            "trained as they are never asked; task.template=plain trains all answers"
        )
    return ". ".join(found)


PIECE = 1024
"""Records that are encoded at a time."""


def lengths(examples: Sequence[Any]) -> IntArray:
    """Return the ``length`` of every example, ``(n,)``."""
    return values(examples, "length")


def values(examples: Sequence[Any], field: str) -> IntArray:
    """Return a field of numbers of every example, ``(n,)``; zeros if there is no such field."""
    if isinstance(examples, Packed):
        return examples.numbers(field)
    return np.array([getattr(example, field, 0) for example in examples], np.int64)


def schema_of(kind: type) -> pa.Schema | None:
    """Return the columns of a class of examples: its fields and ``length``.

    None if the class is not a dataclass of numbers and sequences of tokens.
    """
    if not dataclasses.is_dataclass(kind):
        return None
    types: dict[Any, pa.DataType] = {int: pa.int32()}
    types |= dict.fromkeys((tuple[int, ...], tuple[int, ...] | None), pa.list_(pa.int32()))
    hints = typing.get_type_hints(kind)
    columns = {field.name: types.get(hints[field.name]) for field in dataclasses.fields(kind)}
    if None in columns.values():
        return None
    return pa.schema({"length": pa.int32(), **columns})


def pack(examples: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return examples of one class as Arrow columns."""
    rows = [{name: getattr(example, name) for name in schema.names} for example in examples]
    return pa.RecordBatch.from_pylist(rows, schema)


class Packed(View[Any]):
    """Examples that are made from an Arrow table on access."""

    def __init__(self, kind: type, table: pa.Table) -> None:
        self._kind = kind
        self._table = table
        fields = [field.name for field in dataclasses.fields(kind)]
        self._tokens = {n: table[n] for n in fields if not pa.types.is_int32(table[n].type)}
        self._numbers = {n: self.numbers(n) for n in fields if n not in self._tokens}

    def numbers(self, field: str) -> IntArray:
        """Return a column of numbers, ``(n,)``; zeros if there is none."""
        if field not in self._table.column_names:
            return np.zeros(len(self), np.int32)
        numbers: IntArray = self._table[field].to_numpy()
        return numbers

    def __len__(self) -> int:
        count: int = self._table.num_rows
        return count

    def _item(self, index: int) -> Any:
        found: dict[str, Any] = {n: int(numbers[index]) for n, numbers in self._numbers.items()}
        for name, column in self._tokens.items():
            tokens = column[index].values
            found[name] = None if tokens is None else tuple(tokens.to_numpy().tolist())
        return self._kind(**found)

    def _part(self, chosen: slice) -> list[Any]:
        return [self._item(index) for index in range(len(self))[chosen]]


def encoded(
    objective: Any, records: Sequence[Any], advance: Callable[[int], None]
) -> Sequence[Any]:
    """Encode every record, one at least; call ``advance`` with the number that are done.

    Returns:
        Examples, which are made on access from Arrow columns on disk; a list if examples are other
        than tokens and numbers.
    """
    kind = type(encode_all(objective, records[:1])[0])
    schema = schema_of(kind)

    def pieces() -> Iterator[list[Any]]:
        for piece in blocks(records, PIECE):
            yield encode_all(objective, piece)
            advance(len(piece))

    if schema is None:
        return [*chain.from_iterable(pieces())]
    return Packed(kind, on_disk(schema, (pack(piece, schema) for piece in pieces())))


def encode_all(objective: Any, records: Sequence[Any]) -> list[Any]:
    """Encode records: several at once, unless a class says only how one is encoded."""
    methods = ("encode", "encode_all")
    for cls in type(objective).__mro__:
        if any(name in vars(cls) for name in methods):
            if "encode_all" in vars(cls):
                return list(objective.encode_all(records))
            break
    return [objective.encode(record) for record in records]
