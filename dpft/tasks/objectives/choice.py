"""Classification, whatever is classified: what an objective does once it has a score a class."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.config.schema import Decode
from dpft.tasks.objectives.base import Batch, Instance, Objective, Prediction
from dpft.tasks.objectives.dealing import answered
from dpft.tasks.objectives.evaluation import evaluating, longest_first

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort


class Choice(Objective):
    """One of ``K`` classes for each record; batches hold their ``labels``, ``(B,)`` in int64.

    Attributes:
        classes: their names, in the order of the scores.
    """

    classes: tuple[str, ...]

    @abstractmethod
    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits of the classes, ``(B, K)``; a row depends on its own record alone."""

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
        """The most likely class of each instance, in order; of equal ones the first.

        Returns:
            Predictions whose ``nll`` is that of the true class, in nats, and whose ``tokens`` is 1;
            with the probabilities of all classes.
        """
        device = next(model.parameters()).device
        examples = [self.encode(instance.record) for instance in instances]
        found: list[tuple[str, float, tuple[float, ...]]] = [("", math.nan, ())] * len(examples)

        def answer(chosen: list[int]) -> list[tuple[int, float, tuple[float, ...]]]:
            batch = self.collate([examples[i] for i in chosen]).to(device)
            logits = self.scores(model, batch).double()
            nll = F.cross_entropy(logits, batch.tensors["labels"], reduction="none")
            likely = [tuple(row) for row in logits.softmax(1).tolist()]
            return list(zip(logits.argmax(1).tolist(), nll.tolist(), likely, strict=True))

        with evaluating(model):
            batches = list(longest_first(examples, settings.batch_size))
            for chosen, answers in answered(batches, answer, cohort):
                for i, (index, nll, likely) in zip(chosen, answers, strict=True):
                    found[i] = self.classes[index], nll, likely
                advance(len(chosen))
        return [
            Prediction(
                instance.record.source,
                name,
                instance.references,
                instance.subset,
                nll,
                1,
                cut=_cut(example),
                probabilities=likely,
            )
            for instance, (name, nll, likely), example in zip(
                instances, found, examples, strict=True
            )
        ]


def _cut(example: Any) -> bool | None:
    """Whether an encoded text lost a part; None of what is no text."""
    lost = getattr(example, "cut_source", None)
    return None if lost is None else lost > 0
