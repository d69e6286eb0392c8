"""One step of a run as `dpft.parallel.simulate` takes it: without weights, data or devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    masking_utils,
)

from dpft.config.errors import ConfigError
from dpft.config.schema import VIRTUAL_TOKENS, Model, Parallel, Run
from dpft.models.adapt import adapt
from dpft.models.head import untie
from dpft.models.load import DROPOUTS, LoadedModel, find
from dpft.models.needs import Needs
from dpft.models.sizes import SIZES
from dpft.parallel.simulate import Training
from dpft.privacy import Clipper, make_clipper
from dpft.privacy.clipping.checks.verify import RECORDS
from dpft.privacy.cohort import Cohort
from dpft.tasks import load_task
from dpft.tasks.objectives.base import Batch, Losses
from dpft.tasks.objectives.classifier import Classifier
from dpft.tasks.objectives.language_model import LanguageModel
from dpft.tasks.objectives.mixed import Mixed
from dpft.tasks.units import UnitBatch
from dpft.training.adam_bc import AdamBC
from dpft.training.mechanisms import attach_clipper
from dpft.training.optim import make_optimizer

LENGTH = 512
"""Tokens of a record where neither the command nor the task says how many."""


@dataclass(frozen=True)
class Shape:
    """How a step is laid out.

    Attributes:
        parallel: the layout.
        ranks: how many train together.
        batch: records of each rank's microbatch.
        length: tokens of each record.
        microbatches: of each rank in a step.
        checkpointing: whether each block's activations are computed again in the backward.
        rank: which one is looked at.
    """

    parallel: Parallel
    ranks: int
    batch: int
    length: int
    microbatches: int = 1
    checkpointing: bool = False
    rank: int = 0


def shape_of(
    run: Run,
    ranks: int,
    batch: int | None = None,
    length: int | None = None,
    microbatches: int | None = None,
    **options: Any,
) -> Shape:
    """The shape of a run's step, with its own settings where nothing is given.

    Args:
        run: its settings.
        ranks: how many train together.
        batch: records of a microbatch; None: as many as ``optim.microbatch_tokens`` has room for,
            or one where it is ``auto``.
        length: tokens of a record; None: the most that the task has.
        microbatches: of a rank; None: one, or all that a pipeline's schedule sends at a time.
        options: of `Shape`.
    """
    length = length or int(run.task.get("max_length") or LENGTH)
    if batch is None:
        auto = run.optim.microbatch_tokens == "auto"
        batch = 1 if auto else max(1, run.optim.token_budget // length)
    if microbatches is None:
        microbatches = _round(run.parallel, ranks) if run.parallel.name == "pipeline" else 1
    return Shape(run.parallel, ranks, batch, length, microbatches, **options)


def _round(parallel: Parallel, ranks: int) -> int:
    return parallel.microbatches or 4 * (parallel.length or ranks)


class _Kind(NamedTuple):
    """How a kind of model is trained on made up records.

    Attributes:
        auto: makes the model.
        objective: its losses, for records of so many tokens, in one of these classes.
        extra: what a batch has beside tokens, by their ids ``(B, T)``.
    """

    auto: Any
    objective: Callable[[int, Needs], Losses]
    extra: Callable[[Tensor], Mapping[str, Tensor]]


# Every token is predicted, as of `dpft.tasks.objectives.causal.collate`.
_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "causal": _Kind(
            AutoModelForCausalLM,
            lambda length, needs: LanguageModel(tokenizer=cast(Any, None), max_length=length),
            lambda ids: {
                "position_ids": torch.arange(ids.shape[1]).repeat(len(ids), 1),
                "targets": ids.clone(),
            },
        ),
        "classifier": _Kind(
            AutoModelForSequenceClassification,
            lambda length, needs: Classifier(cast(Any, None), length, needs.classes),
            lambda ids: {"labels": torch.zeros(len(ids), dtype=torch.long)},
        ),
    }
)


def training_of(run: Run, shape: Shape, private: bool = True) -> Training:
    """How a run trains, in one step of that shape.

    Args:
        run: its settings.
        shape: of the step.
        private: whether it clips as the settings say, or not at all.

    Raises:
        ConfigError: for what cannot be simulated.
    """
    needs = load_task(run.task).needs
    if needs.kind not in _KINDS:
        raise ConfigError(
            f"task={run.task['name']} needs a model of kind {needs.kind}; expected a task of texts "
            "to write or to classify, such as task=e2e or task=sst2: dpft plan simulates "
            f"{' and '.join(_KINDS)} models"
        )
    kind = _KINDS[needs.kind]
    if run.adapt.name in (*VIRTUAL_TOKENS, "rgp"):
        raise ConfigError(
            f"adapt is {run.adapt.name}, whose steps dpft plan cannot simulate; expected "
            "adapt=full or adapt=lora"
        )
    path = run.model.path
    config = SIZES[path]() if path in SIZES else find(run.model).config()
    if config.is_encoder_decoder:
        raise ConfigError(
            f"model {run.model.name} ({config.model_type}) has an encoder and a decoder, whose "
            "steps dpft plan cannot simulate; expected a model such as model=gpt2"
        )
    longest = _longest(config, shape.length)
    if shape.length > longest:
        raise ConfigError(
            f"records of {shape.length} tokens for {run.model.name}, which takes {longest}; "
            f"type --length {longest} or less"
        )

    def build() -> nn.Module:
        model = _drawn(run.model, kind, needs, config)
        if shape.checkpointing or run.model.checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        adapted = adapt(LoadedModel(model, None, ("random initialisation",)), run.adapt, needs, 0)
        trained: nn.Module = adapted.model
        return trained.train()

    objective = kind.objective(shape.length, needs)
    if run.precision != "float32":
        objective = Mixed(objective, run.precision)

    def batch() -> UnitBatch:
        ids = torch.zeros(shape.batch, shape.length, dtype=torch.long)
        tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **kind.extra(ids)}
        return UnitBatch(Batch(tensors), torch.ones(shape.batch, 1, dtype=torch.float64))

    def few(batch: UnitBatch) -> UnitBatch:
        return batch.units(torch.arange(min(shape.batch, RECORDS)))

    def losses(model: nn.Module, batch: UnitBatch) -> Tensor:
        with _masks_as_of_numbers():
            return objective.losses(model, batch.batch)

    def clip(model: nn.Module, cohort: Cohort | None) -> Clipper:
        if not private:
            return make_clipper(model, "none", cohort=cohort, loss_scale=run.scale)
        return attach_clipper(run.clip, model, cohort, run.scale)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        every = list(parameters)
        made = make_optimizer(run.optim, iter(every))
        if isinstance(made, AdamBC):
            made.deviations = dict.fromkeys(every, 1.0)  # no noise is drawn here
        return made

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
    """Within this context transformers asks fake tensors, too, whether anything is masked.

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
    """Tokens that a model has positions for; RoBERTa begins behind its padding's."""
    positions = int(getattr(config, "max_position_embeddings", otherwise))
    behind = getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert")
    return positions - config.pad_token_id - 1 if behind else positions


def _drawn(settings: Model, kind: _Kind, needs: Needs, config: Any) -> Any:
    """The model, without dropout: attention that drops has other kernels on a CPU than on a GPU."""
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    if needs.classes:
        config.num_labels = len(needs.classes)
    model = kind.auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
    if settings.tied is False:
        untie(model)
    return model
