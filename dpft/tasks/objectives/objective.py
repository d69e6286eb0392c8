"""Objectives turn records into examples, losses and predictions.

Guarantee: the loss of a record depends on that record alone, not on the padding, positions or
averages of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpft.config.schema import Decode
from dpft.tasks.objectives.encoding import values

if TYPE_CHECKING:  # tasks import this module, and their settings are checked before torch is loaded
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
