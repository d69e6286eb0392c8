"""Build a run's step for `dpft.parallel.simulate`: without weights, data or devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import masking_utils

from dpft.config.errors import ConfigError
from dpft.config.schema import Parallel, Run
from dpft.models.adapt import adapt
from dpft.models.architecture import ENCODER_DECODER, draw, finish, kind_of, suit
from dpft.models.image_input import image_input
from dpft.models.load import LoadedModel, origin_of
from dpft.models.sizes import SIZES
from dpft.parallel.simulate import Training
from dpft.privacy import Clipper
from dpft.privacy.clipping.checks.verify import RECORDS
from dpft.privacy.cohort import Cohort
from dpft.tasks import load_task
from dpft.tasks.objectives.base import Batch, Losses
from dpft.tasks.objectives.classifier import Classifier
from dpft.tasks.objectives.encoder_decoder import EncoderDecoder
from dpft.tasks.objectives.image import ImageClassifier
from dpft.tasks.objectives.infill import Infilling
from dpft.tasks.objectives.language_model import LanguageModel
from dpft.tasks.objectives.mixed import Mixed
from dpft.tasks.units import UnitBatch
from dpft.training.mechanisms import attach_clipper
from dpft.training.optim import make_optimizer

LENGTH = 512
"""Tokens of a record where neither the command nor the task says how many."""


@dataclass(frozen=True)
class StepShape:
    """How a step is laid out.

    Attributes:
        parallel: the layout.
        ranks: how many train together.
        batch: records of each rank's microbatch.
        length: tokens of each record.
        microbatches: of each rank in a step.
        rank: which one is simulated.
    """

    parallel: Parallel
    ranks: int
    batch: int
    length: int
    microbatches: int = 1
    rank: int = 0


def shape_of(
    run: Run, ranks: int, batch: int | None = None, length: int | None = None, rank: int = 0
) -> StepShape:
    """Return the shape of a run's step; a pipeline's has all microbatches of one round.

    Args:
        run: its settings.
        ranks: how many train together.
        batch: records of a microbatch; None: as many as ``optim.microbatch_tokens`` has room for,
            or one where it is ``auto``.
        length: tokens of a record; None: the most that the task has, and of an image its patches.
        rank: which one is simulated.
    """
    length = length or _length(run)
    if batch is None:
        auto = run.optim.microbatch_tokens == "auto"
        batch = 1 if auto else max(1, run.optim.token_budget // length)
    parallel, microbatches = run.parallel, 1
    if parallel.name == "pipeline":
        microbatches = parallel.microbatches or 4 * (parallel.length or ranks)
    return StepShape(parallel, ranks, batch, length, microbatches, rank)


def _length(run: Run) -> int:
    if load_task(run.task).needs.kind == "image":
        return _image(run, _config(run)).widest()[0]
    return int(run.task.get("max_length") or LENGTH)


def _image(run: Run, config: Any) -> ImageClassifier:
    """Return the objective of images as large as the task or the model says."""
    image = image_input(config, {}, run.model.name)
    size = run.task.get("image_size") or image.size
    return ImageClassifier(size, image.mean, image.std, image.patch, ())


class _Filling(Infilling):
    """Filling in words that no tokenizer has to find: the first tokens stand for them."""

    def __post_init__(self) -> None:
        """Nothing to be looked up."""

    @cached_property
    def words(self) -> tuple[int, ...]:
        return tuple(range(len(self.classes)))


_Made = tuple[Losses, dict[str, Tensor]]
"""A model's losses, and the tensors of a batch of made up records."""


def _causal(run: Run, shape: StepShape, config: Any) -> _Made:
    # Every token is predicted, as of `dpft.tasks.objectives.causal.collate`.
    ids = _ids(shape.batch, shape.length)
    positions = torch.arange(shape.length).repeat(shape.batch, 1)
    tensors = {**_shown(ids), "position_ids": positions, "targets": ids.clone()}
    objective = LanguageModel(tokenizer=cast(Any, None), max_length=shape.length)
    return objective, tensors


def _both(run: Run, shape: StepShape, config: Any) -> _Made:
    # Half of the tokens are the source's.
    source, target = _ids(shape.batch, shape.length // 2), _ids(shape.batch, -(-shape.length // 2))
    tensors = {**_shown(source), "decoder_input_ids": target, "targets": target.clone()}
    objective = EncoderDecoder(tokenizer=cast(Any, None), max_length=shape.length)
    return objective, tensors


def _classifier(run: Run, shape: StepShape, config: Any) -> _Made:
    objective = Classifier(cast(Any, None), shape.length, load_task(run.task).needs.classes)
    tensors = {**_shown(_ids(shape.batch, shape.length)), "labels": _ids(shape.batch)}
    return objective, tensors


def _masked(run: Run, shape: StepShape, config: Any) -> _Made:
    ids, one = _ids(shape.batch, shape.length), _ids(shape.batch)
    tensors = {**_shown(ids), "blank": one, "labels": one.clone()}
    words = run.task["label_words"]
    objective = _Filling(cast(Any, None), shape.length, "", words, tuple(words))
    return objective, tensors


def _images(run: Run, shape: StepShape, config: Any) -> _Made:
    objective = _image(run, config)
    if shape.length != objective.widest()[0]:
        raise ConfigError(
            f"records of {shape.length} tokens for {run.model.name}, of whose images each is "
            f"{objective.widest()[0]}; leave --length out"
        )
    pixels = torch.zeros(shape.batch, config.num_channels, objective.size, objective.size)
    tensors = {"pixels": pixels, "labels": _ids(shape.batch)}
    return objective, tensors


_RECORDS: Mapping[str, Callable[[Run, StepShape, Any], _Made]] = MappingProxyType(
    {"causal": _causal, "classifier": _classifier, "masked": _masked, "image": _images}
)


def _ids(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def _shown(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _config(run: Run) -> Any:
    """Return the model's configuration of transformers."""
    path = run.model.path
    needs = load_task(run.task).needs
    return SIZES[path]() if path in SIZES else origin_of(run.model, needs).config()


def training_of(run: Run, shape: StepShape) -> Training:
    """Return how a run trains, in one step of that shape.

    Args:
        run: its settings.
        shape: of the step.

    Raises:
        ConfigError: for what cannot be simulated.
    """
    needs = load_task(run.task).needs
    if run.adapt.name in ("prefix", "rgp"):
        raise ConfigError(
            f"adapt is {run.adapt.name}, whose steps dpft plan cannot simulate; expected "
            "adapt=full or adapt=lora"
        )
    config = _config(run)
    kind = kind_of(run.model, needs, config)
    # Without dropout: attention that drops has other kernels on a CPU than on a GPU.
    suit(config, needs, 0.0)
    made = _both if kind is ENCODER_DECODER else _RECORDS[needs.kind]
    objective, _ = made(run, replace(shape, batch=1), config)
    longest = _longest(config, shape.length)
    if shape.length > longest:
        raise ConfigError(
            f"records of {shape.length} tokens for {run.model.name}, which takes {longest}; "
            f"type --length {longest} or less"
        )

    def build() -> nn.Module:
        model = draw(kind.auto, config)
        finish(model, run.model, needs)
        adapted = adapt(LoadedModel(model, None, ("random initialisation",)), run.adapt, needs, 0)
        trained: nn.Module = adapted.model
        return trained.train()

    if run.precision != "float32":
        objective = Mixed(objective)

    def batch() -> UnitBatch:
        _, tensors = made(run, shape, config)
        return UnitBatch(Batch(tensors), torch.ones(shape.batch, 1, dtype=torch.float64))

    def few(batch: UnitBatch) -> UnitBatch:
        return batch.units(torch.arange(min(shape.batch, RECORDS)))

    def losses(model: nn.Module, batch: UnitBatch) -> Tensor:
        with _masks_as_of_numbers():
            return objective.losses(model, batch.batch)

    def clip(model: nn.Module, cohort: Cohort | None) -> Clipper:
        return attach_clipper(run.clip, model, cohort)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(run.optim, iter(parameters))

    return Training(
        build,
        batch,
        losses,
        clip,
        optimizer,
        shape.parallel,
        shape.ranks,
        shape.rank,
        shape.microbatches,
        few,
    )


@contextmanager
def _masks_as_of_numbers() -> Iterator[None]:
    """Have transformers ask fake tensors, too, whether anything is masked.

    Else it keeps every mask, and has attention computed above the diagonal.
    """
    module: Any = masking_utils
    before = module.is_tracing
    module.is_tracing = lambda tensor=None: before()
    try:
        yield
    finally:
        module.is_tracing = before


def _longest(config: Any, otherwise: int) -> int:
    """Return the tokens that a model has positions for; RoBERTa begins behind its padding's."""
    positions = int(getattr(config, "max_position_embeddings", otherwise))
    behind = getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert")
    return positions - config.pad_token_id - 1 if behind else positions
