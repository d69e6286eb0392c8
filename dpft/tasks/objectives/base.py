"""What an objective is: it turns records into examples, losses and predictions.

The loss of a record may depend on that record alone, whatever else is in its batch: padding,
positions and averages included. The guarantee rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpft.config.schema import Decode
from dpft.tasks.objectives.packed import values

if TYPE_CHECKING:  # tasks import this module, and their settings are checked before torch is loaded
    import torch
    from torch import Tensor, nn

    from dpft.parallel.cohort import TrainingCohort


class Example(Protocol):
    """An encoded record."""

    @property
    def length(self) -> int:
        """Positions that it takes in memory: tokens of a text, patches of an image."""
        ...


@dataclass(frozen=True)
class Instance:
    """One question of an evaluation.

    Attributes:
        record: what the model is given; its target is not shown to it.
        references: every right answer; none where nobody knows one.
        subset: the part of the split that it belongs to, where parts are scored by themselves.
    """

    record: Any
    references: tuple[str, ...]
    subset: str = ""


@dataclass(frozen=True)
class Question:
    """A row that a trained model is asked about, whose answer need not be known.

    Attributes:
        cells: of the row, by column, to be written beside the answer.
        instance: the question, without references unless they are what is asked about.
    """

    cells: Mapping[str, Any]
    instance: Instance


@dataclass(frozen=True)
class Prediction:
    """The model's answer to an `Instance`.

    Attributes:
        source: the question, as text.
        prediction: the answer: a generated text, or the name of a class.
        references: every right answer.
        subset: as in the instance.
        nll: negative log-likelihood of the first reference; None where it was not computed.
        tokens: how many tokens ``nll`` is a sum over.
        finished: whether a generated text came to its end, or was stopped; None: no such text.
        cut: whether the question was too long for the model and lost a part; None: not known.
        probabilities: of all classes, in the order of the objective; none of a generated text, and
            none where a predictions file was read.
    """

    source: str
    prediction: str
    references: tuple[str, ...]
    subset: str = ""
    nll: float | None = None
    tokens: int | None = None
    finished: bool | None = None
    cut: bool | None = None
    probabilities: tuple[float, ...] = field(default=(), compare=False)


def texts(predictions: Sequence[Prediction]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The answers and their references, as metrics take them."""
    return [p.prediction for p in predictions], [p.references for p in predictions]


@dataclass(frozen=True)
class Batch:
    """Model inputs for ``B`` records; every tensor has ``B`` rows."""

    tensors: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def to(self, device: torch.device) -> Batch:
        # Towards a device the host goes on at once: nothing changes a batch after it was made.
        free = device.type != "cpu"
        return Batch({n: x.to(device, non_blocking=free) for n, x in self.tensors.items()})

    def rows(self, index: Tensor) -> Batch:
        """The rows that ``index`` picks (int64, or bool of shape ``(B,)``)."""
        return Batch({name: tensor[index] for name, tensor in self.tensors.items()})


class Losses(Protocol):
    """What training asks of an objective once records are encoded."""

    def collate(self, examples: Sequence[Any], widths: Sequence[int] | None = None) -> Batch:
        """Examples as a batch, padded to ``widths``; None: to the widest among them."""
        ...

    def widths(self, example: Any) -> tuple[int, ...]:
        """What an example is padded to where its company may not decide that.

        Positions come first. No example with a loss is narrower than `blank`.
        """
        ...

    def widest(self) -> tuple[int, ...]:
        """Widths that any example fits in, which follow from settings and model alone."""
        ...

    def blank(self) -> Any:
        """A short example with a finite loss, which is no record's."""
        ...

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per row, ``(B,)``, nothing summed or averaged across rows."""
        ...


class Objective(Losses, Protocol):
    """Made by a task for one model; see `dpft.tasks.objectives.causal.Causal`.

    It may have ``encode_all(records)``, which does the same as ``encode`` for several at once.
    """

    def encode(self, record: Any) -> Example: ...

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

        Args:
            model: the trained model; left in training mode if it was.
            instances: the questions.
            settings: ``conf/decode``.
            seed: for sampling.
            advance: called with the number of instances that are done.
            cohort: the processes that answer together, each some of the batches
                (`dpft.tasks.objectives.dealing`); all return all answers. None: this one.
        """
        ...


def cut_in_encoding(examples: Sequence[Any]) -> str:
    """How many records were too long and lost a part, in words; empty if none did.

    A function of the records: of private ones it may be looked at, and not be kept.
    """
    sources, targets = (
        np.count_nonzero(values(examples, name) > 0) for name in ("cut_source", "cut_target")
    )
    if not sources and not targets:
        return ""
    return (
        f"of {len(examples):,} training records, {sources:,} lost a part of their source and "
        f"{targets:,} the end of their target: longer than task.max_length, or than the model reads"
    )
