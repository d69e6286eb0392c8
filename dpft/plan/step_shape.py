"""Build a run's step for `dpft.plan.simulate`: without weights or data."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import masking_utils

from dpft.config.errors import ConfigError
from dpft.config.flags import Flag, flag
from dpft.config.schema import Run
from dpft.models.adapt import adapt
from dpft.models.architecture import (
    ENCODER_DECODER,
    draw,
    finish,
    image_input,
    kind_of,
    suit,
)
from dpft.models.families import SIZED, sized
from dpft.models.load import LoadedModel, find
from dpft.models.nf4 import check_nf4, pack
from dpft.plan.simulate import Training
from dpft.privacy.verification.rules import RECORDS
from dpft.tasks import load_task
from dpft.tasks.objectives.classifier import Classifier, ImageClassifier, Infilling
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.objectives.generation import EncoderDecoder, LanguageModel
from dpft.tasks.objectives.objective import Batch, Losses
from dpft.tasks.units import UnitBatch
from dpft.training.setup import attach_clipper, make_optimizer

LENGTH = 512
"""Tokens of a record where neither the command nor the task says how many."""


@dataclass(frozen=True)
class StepShape:
    """The records of a microbatch, and the tokens of each."""

    batch: int
    length: int


def shape_of(run: Run, batch: int | None = None, length: int | None = None) -> StepShape:
    """Return the shape of a run's microbatch.

    Args:
        run: the settings.
        batch: records; None: as many as ``optim.microbatch_tokens`` has room for.
        length: tokens of a record; None: the most that the task has, or of an image its patches.
    """
    if length is None:
        length = int(run.task.get("max_length") or LENGTH)
        if load_task(run.task).needs.kind == "image":
            length = _images(run, _config(run)).widest()[0]
    if batch is None:
        batch = max(1, run.optim.tokens // length)
    return StepShape(batch, length)


def training_of(run: Run, shape: StepShape) -> Training:
    """Return how a run trains, in one step of that shape.

    Raises:
        ConfigError: it cannot be simulated.
    """
    needs = load_task(run.task).needs
    if run.adapt.name in ("prefix", "rgp"):
        raise ConfigError(
            f"adapt is {run.adapt.name}, whose steps dpft plan cannot simulate; expected "
            "adapt=full or adapt=lora"
        )
    if run.model.dtype == "nf4":
        check_nf4()
    config = _config(run)
    kind = kind_of(run.model, needs, config)
    # Without dropout: attention that drops has other kernels on a CPU than on a GPU.
    suit(config, needs, 0.0)
    kind_name = "pairs" if kind is ENCODER_DECODER else needs.kind
    objective = _objective(kind_name, run, shape, config)
    longest = _longest(config, shape.length)
    if shape.length > longest:
        raise ConfigError(
            f"records of {shape.length} tokens for {run.model.name}, which takes {longest}; "
            f"type --length {longest} or less"
        )
    trained: Losses = objective if run.precision == "float32" else Mixed(objective)

    def build() -> nn.Module:
        model = draw(kind.auto, config)
        finish(model, run.model, needs)
        adapted = adapt(LoadedModel(model, None, (flag(Flag.RANDOM_WEIGHTS),)), run.adapt, needs, 0)
        whole: nn.Module = adapted.model
        if run.model.dtype == "nf4":
            pack(whole)
        return whole.train()

    def batch() -> UnitBatch:
        tensors = _tensors(kind_name, shape, objective, config)
        return UnitBatch(Batch(tensors), torch.ones(shape.batch, 1, dtype=torch.float64))

    def losses(model: nn.Module, batch: UnitBatch) -> Tensor:
        with _masks_as_of_numbers():
            return trained.losses(model, batch.batch)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(run.optim, iter(parameters))

    return Training(
        build,
        batch,
        losses,
        lambda model: attach_clipper(run.clip, model),
        optimizer,
        lambda batch: batch.units(torch.arange(min(shape.batch, RECORDS))),
    )


class _Filling(Infilling):
    """Infilling whose label words are the first tokens, since there is no tokenizer."""

    def __post_init__(self) -> None:
        """Skip the lookup of the words."""

    @cached_property
    def words(self) -> tuple[int, ...]:
        return tuple(range(len(self.classes)))


def _objective(kind: str, run: Run, shape: StepShape, config: Any) -> Losses:
    """Return the objective of a kind of task, without a tokenizer."""
    none = cast(Any, None)
    match kind:
        case "causal":
            return LanguageModel(tokenizer=none, max_length=shape.length)
        case "pairs":
            return EncoderDecoder(tokenizer=none, max_length=shape.length)
        case "classifier":
            return Classifier(none, shape.length, load_task(run.task).needs.classes)
        case "masked":
            words = run.task["label_words"]
            return _Filling(none, shape.length, tuple(words), "", words)
    images = _images(run, config)
    if shape.length != images.widest()[0]:
        raise ConfigError(
            f"records of {shape.length} tokens for {run.model.name}, of whose images each is "
            f"{images.widest()[0]}; leave --length out"
        )
    return images


def _tensors(kind: str, shape: StepShape, objective: Any, config: Any) -> dict[str, Tensor]:
    """Return the tensors of a batch of made-up records; zeros, since only shapes count."""

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(shape.batch, *sizes, dtype=torch.long)

    if kind == "image":
        size = objective.size
        pixels = torch.zeros(shape.batch, config.num_channels, size, size)
        return {"pixels": pixels, "labels": zeros()}
    ids = zeros(shape.length // 2 if kind == "pairs" else shape.length)
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    match kind:
        case "causal":  # every token is predicted
            positions = torch.arange(shape.length).repeat(shape.batch, 1)
            return {**tensors, "position_ids": positions, "targets": ids.clone()}
        case "pairs":  # half of the tokens are the source's
            target = zeros(-(-shape.length // 2))
            return {**tensors, "decoder_input_ids": target, "targets": target.clone()}
        case "masked":
            return {**tensors, "blank": zeros(), "labels": zeros()}
    return {**tensors, "labels": zeros()}


def _images(run: Run, config: Any) -> ImageClassifier:
    """Return the objective of images as large as the model says."""
    image = image_input(config, {}, run.model.name)
    return ImageClassifier(image.size, image.mean, image.std, image.patch, ())


def _config(run: Run) -> Any:
    """Return the model's configuration of transformers."""
    path = run.model.path
    return sized(path) if path in SIZED else find(run.model).config()


@contextmanager
def _masks_as_of_numbers() -> Iterator[None]:
    """Have transformers treat fake tensors like real ones when it looks for masked positions.

    Otherwise it keeps every mask, and attention is computed above the diagonal.
    """
    module: Any = masking_utils
    before = module.is_tracing
    module.is_tracing = lambda tensor=None: before()
    try:
        yield
    finally:
        module.is_tracing = before


def _longest(config: Any, otherwise: int) -> int:
    """Return the tokens that a model has positions for; RoBERTa's begin after its padding's."""
    positions = int(getattr(config, "max_position_embeddings", otherwise))
    behind = getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert")
    return positions - config.pad_token_id - 1 if behind else positions
