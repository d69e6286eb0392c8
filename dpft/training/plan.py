"""What a run would take, before it is paid for: its step, simulated without weights or data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from dpft.config.errors import ConfigError
from dpft.config.schema import Model, Run
from dpft.models.adapt import adapt
from dpft.models.head import untie
from dpft.models.load import DROPOUTS, LoadedModel, find
from dpft.models.sizes import SIZES
from dpft.parallel.simulate import LAYOUTS, Cost, Training, simulated
from dpft.privacy import Clipper, make_clipper
from dpft.privacy.cohort import Cohort
from dpft.tasks import load_task
from dpft.tasks.objectives.base import Batch, Losses
from dpft.tasks.objectives.language_model import LanguageModel
from dpft.tasks.objectives.mixed import Mixed
from dpft.training.adam_bc import AdamBC
from dpft.training.mechanisms import attach_clipper
from dpft.training.optim import make_optimizer

LENGTH = 512
"""Tokens of a record where neither the command nor the task says how many."""


@dataclass(frozen=True)
class Shape:
    """How a step is laid out.

    Attributes:
        layout: one of `dpft.parallel.simulate.LAYOUTS`.
        ranks: how many train together.
        batch: records of each rank's microbatch.
        length: tokens of each record.
        microbatches: of each rank in a step.
        checkpointing: whether each block's activations are computed again in the backward.
    """

    layout: str
    ranks: int
    batch: int
    length: int
    microbatches: int = 1
    checkpointing: bool = False


@dataclass(frozen=True)
class Plan:
    """What one rank holds and sends.

    Attributes:
        shape: of the step.
        private: as the run clips; None where it does not.
        plain: the same without privacy.
    """

    shape: Shape
    private: Cost | None
    plain: Cost


def shape_of(run: Run, ranks: int, batch: int | None, length: int | None, **options: Any) -> Shape:
    """The shape of a run's step, with its own settings where nothing is given.

    Raises:
        ConfigError: for a layout that is not simulated.
    """
    if run.parallel.name not in LAYOUTS or run.parallel.shards is not None:
        raise ConfigError(
            f"parallel={run.parallel.name} with shards={run.parallel.shards} is not simulated; "
            f"expected parallel={' or parallel='.join(LAYOUTS)}, over all ranks"
        )
    length = length or int(run.task.get("max_length") or LENGTH)
    batch = batch or max(1, run.optim.microbatch_tokens // length)
    return Shape(run.parallel.name, ranks, batch, length, **options)


def plan(run: Run, shape: Shape) -> Plan:
    """Simulate a step of a run, and the same one without privacy.

    Args:
        run: its settings.
        shape: of the step.

    Raises:
        ConfigError: for what cannot be simulated.
    """
    private = simulated(training_of(run, shape)) if run.clip.private else None
    return Plan(shape, private, simulated(training_of(run, shape, private=False)))


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
    if needs.kind != "causal":
        raise ConfigError(
            f"task={run.task['name']} needs a model of kind {needs.kind}; expected a task of texts "
            "to write, such as task=e2e: dpft plan knows causal language models only"
        )
    if run.adapt.name in ("prefix", "rgp"):
        raise ConfigError(
            f"adapt is {run.adapt.name}, whose steps dpft plan cannot simulate; expected "
            "adapt=full or adapt=lora"
        )
    path = run.model.path
    config = SIZES[path]() if path in SIZES else find(run.model).config()
    if config.is_encoder_decoder:
        raise ConfigError(
            f"model {run.model.name} ({config.model_type}) has an encoder and a decoder; dpft plan "
            "knows causal language models only: type a model such as model=gpt2"
        )
    longest = getattr(config, "max_position_embeddings", shape.length)
    if shape.length > longest:
        raise ConfigError(
            f"records of {shape.length} tokens for {run.model.name}, which takes {longest}; "
            f"type --length {longest} or less"
        )

    def build() -> nn.Module:
        model = _drawn(run.model, config)
        if shape.checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        adapted = adapt(LoadedModel(model, None, ("random initialisation",)), run.adapt, needs, 0)
        trained: nn.Module = adapted.model
        return trained.train()

    objective: Losses = LanguageModel(tokenizer=cast(Any, None), max_length=shape.length)
    if run.precision != "float32":
        objective = Mixed(objective)

    def losses(model: nn.Module) -> Tensor:
        return objective.losses(model, _tokens(shape.batch, shape.length))

    def clip(model: nn.Module, cohort: Cohort | None) -> Clipper:
        if not private:
            return make_clipper(model, "none", cohort=cohort)
        return attach_clipper(run.clip, model, cohort)

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        every = list(parameters)
        made = make_optimizer(run.optim, iter(every))
        if isinstance(made, AdamBC):
            made.deviations = dict.fromkeys(every, 1.0)  # no noise is drawn here
        return made

    return Training(
        build,
        losses,
        clip,
        optimizer,
        shape.layout,
        shape.ranks,
        shape.microbatches,
    )


def _drawn(settings: Model, config: Any) -> Any:
    """The model, without dropout: attention that drops has other kernels on a CPU than on a GPU."""
    for name in DROPOUTS:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    if settings.tied is False:
        untie(model)
    return model


def _tokens(batch: int, length: int) -> Batch:
    """Records of which every token is predicted, as of `dpft.tasks.objectives.causal.collate`."""
    ids = torch.zeros(batch, length, dtype=torch.long)
    positions = torch.arange(length).repeat(batch, 1)
    return Batch(
        {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": positions,
            "targets": ids.clone(),
        }
    )
