"""Tasks whose answers are texts, written by a causal language model."""

from __future__ import annotations

from dataclasses import dataclass

from dpft.checks import one_of
from dpft.models import LoadedModel, Needs
from dpft.objectives.causal import Causal
from dpft.tasks.base import Task


@dataclass(frozen=True)
class Generation(Task):
    """Settings that all of these tasks share."""

    max_length: int = 256
    loss: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task.loss", self.loss, ("mean", "sum"))

    @property
    def needs(self) -> Needs:
        return Needs("causal")

    def objective(self, loaded: LoadedModel) -> Causal:
        return Causal(loaded.text_tokenizer, self.max_length, self.loss)
