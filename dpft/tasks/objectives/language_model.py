"""Language modelling: every token of a text is predicted, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpft.config.schema import Decode
from dpft.tasks.objectives.base import Instance, Prediction
from dpft.tasks.objectives.causal import Causal, CausalExample
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.objectives.tokens import token_ids

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort


@dataclass(frozen=True)
class LanguageModel(Causal):
    """Write a whole text, given what the tokenizer begins one with, or else the end token alone.

    A text that is longer than ``max_length`` is cut, and the end token with it. Predictions hold no
    text: only how likely the reference is, over the tokens that were kept.
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

    def _prompt(self, record: TextRecord, longest: int) -> tuple[tuple[int, ...], int]:
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
        likelihoods = self.likelihoods(model, instances, settings.batch_size, cohort)
        advance(len(instances))
        examples = self.encode_all([self._referenced(instance) for instance in instances])
        return [
            Prediction("", "", one.references, one.subset, nll, tokens, cut=example.cut_target > 0)
            for one, (nll, tokens), example in zip(instances, likelihoods, examples, strict=True)
        ]
