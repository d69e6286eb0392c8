"""Plan a run: memory and time of its step on a device, and the largest microbatch that fits.

One step is simulated without weights or data (`dpft.plan.simulate`). Each of its operations
takes as long as its products at the device's rate, as its bytes at the bandwidth of its memory, or
as the shortest operation, whichever is longest. Operations follow one another.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor, nn
from transformers import masking_utils

from dpft.config.errors import ConfigError, one_of
from dpft.config.flags import Flag, flag
from dpft.config.schema import Run
from dpft.models.adapt import adapt
from dpft.models.architecture import (
    ENCODER_DECODER,
    draw,
    finish,
    image_input,
    kind_of,
    positions,
    suit,
)
from dpft.models.families import SIZED, sized
from dpft.models.load import LoadedModel, find
from dpft.models.nf4 import check_nf4, pack
from dpft.plan.simulate import OPTIMIZER, Cost, Training, simulated
from dpft.privacy.verification.rules import RECORDS
from dpft.tasks import load_task
from dpft.tasks.objectives.classifier import Classifier, ImageClassifier, Infilling
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.objectives.generation import EncoderDecoder, LanguageModel
from dpft.tasks.objectives.objective import Batch, Losses
from dpft.tasks.units import UnitBatch
from dpft.training.mechanisms import known_size, with_any_noise
from dpft.training.setup import attach_clipper, compiles, make_optimizer

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
    longest = positions(kind, config)
    if longest is not None and shape.length > longest:
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


SHARE = 0.9
"""Share of a device's memory to fill: the rest is for what is not counted, as fragmentation."""

_SHEETS = Path(__file__).parent / "devices"
_GIB, _GIGA, _TERA, _MICRO = 2**30, 1e9, 1e12, 1e-6
_MOST = 1024  # records of a step where that is unknown
_PRECISIONS = ("bfloat16", "float32", "float64")

# Seconds of the host. For each operation of an eager step: 2,900 kernels of GPT-2 small took 140 ms
# (docs/explanation/performance.md). To replay a program: an assumption.
_HOST_OPERATION, _HOST_PROGRAM = 48e-6, 1e-3


@dataclass(frozen=True)
class Device:
    """The data sheet of a device.

    Attributes:
        memory: bytes.
        rates: floating-point operations a second of products, by the precision of their factors.
        bandwidth: bytes a second to and from its memory.
        overhead: seconds of the shortest operation.
        attained: share of the data sheet's rates, for a reader.
    """

    title: str
    memory: float
    rates: Mapping[str, float]
    bandwidth: float
    overhead: float
    attained: str = ""


def names() -> list[str]:
    """Return the names of the data sheets."""
    return sorted(path.stem for path in _SHEETS.glob("*.yaml"))


def device(name: str) -> Device:
    """Return a device by its name, or by a file like those in ``dpft/plan/devices``.

    Raises:
        ConfigError: there is none, or it lacks a number.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _SHEETS / f"{name}.yaml"
    if not path.is_file():
        one_of("--on", name, [*names(), "a data sheet that is there, FILE.yaml"])
    try:
        sheet: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        products, moved = (float(sheet["attained"][key]) for key in ("products", "memory"))
        rates = {kind: float(sheet["teraflops"][kind]) * _TERA * products for kind in _PRECISIONS}
        return Device(
            title=str(sheet["title"]),
            memory=float(sheet["memory_gib"]) * _GIB,
            rates=rates,
            bandwidth=float(sheet["memory_gb_s"]) * _GIGA * moved,
            overhead=float(sheet["operation_us"]) * _MICRO,
            attained=f"products at {products:.0%} and memory at {moved:.0%} of the data sheet",
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path} is no data sheet of a device ({type(error).__name__}: {error}); expected the "
            f"keys of {_SHEETS / 'h100-sxm.yaml'}"
        ) from error


@dataclass(frozen=True)
class StepTime:
    """The seconds of one step, and what they are made of.

    Attributes:
        microbatch: seconds of one microbatch's forward and backward.
        optimizer: seconds of the optimizer, once a step.
        microbatches: how many a step has.
        host: seconds in which the host prepares one microbatch, while the device works.
    """

    microbatch: float
    optimizer: float
    microbatches: int
    host: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return max(self.microbatch, self.host) * self.microbatches + self.optimizer


def plan(
    run: Run, shape: StepShape, device: Device
) -> tuple[Cost, StepTime, tuple[int, int] | None]:
    """Return memory and work of a microbatch, the time of a step, and `length_of` the run.

    Args:
        run: the settings.
        shape: of a microbatch; the run's steps have as many of them as their records fill.
        device: where it runs.

    Raises:
        ConfigError: it cannot be simulated.
    """
    length = length_of(run)
    cost = simulated(training_of(run, shape))
    microbatches = 1 if length is None else math.ceil(length[1] / shape.batch)
    compiled = compiles(run, torch.device("cuda"))
    return cost, time_of(cost, device, microbatches, compiled), length


def length_of(run: Run) -> tuple[int, int] | None:
    """Return steps and expected records of a step; None for data of unknown size."""
    size = known_size(run)
    if size is None:
        return None
    mechanism = with_any_noise(run, size)
    return mechanism.steps, mechanism.batch_size


def time_of(cost: Cost, device: Device, microbatches: int, compiled: bool) -> StepTime:
    """Estimate the time of a step of so many simulated microbatches on a device."""
    seconds = {
        name: sum(
            times
            * max(
                one.flops / device.rates[one.precision] if one.precision else 0.0,
                one.moved / device.bandwidth,
                device.overhead,
            )
            for one, times in work.items()
        )
        for name, work in cost.work.items()
    }
    optimizer = seconds.pop(OPTIMIZER, 0.0)
    eager = sum(sum(work.values()) for name, work in cost.work.items() if name != OPTIMIZER)
    host = _HOST_PROGRAM if compiled else _HOST_OPERATION * eager
    return StepTime(sum(seconds.values()), optimizer, microbatches, host)


def largest_of(run: Run, shape: StepShape, memory: float) -> int:
    """Return the records of the largest microbatch that fits into nine tenths of a GPU's memory."""
    length = length_of(run)
    most = (run.optim.batch_size or _MOST) if length is None else length[1]

    def peak(batch: int) -> int:
        return simulated(training_of(run, replace(shape, batch=batch)), counts=False).peak

    return most if peak(most) <= SHARE * memory else largest(peak, SHARE * memory, most)


def fitted(run: Run, device: torch.device) -> Run:
    """Replace ``optim.microbatch_tokens=auto`` by the most tokens that fit a GPU.

    They follow from the settings and from the GPU's memory, used or not, so that a run which
    continues there has the same. Where a step cannot be simulated, where ranks share a model, and
    on a CPU, ``auto`` stays, and means 4,096.
    """
    asked = run.optim.microbatch_tokens == "auto" and run.parallel.name == "data"
    if device.type != "cuda" or not asked:
        return run
    # The first microbatch of a shape runs eagerly too, and a CUDA graph has separate memory.
    compiled = compiles(run, device)
    memory = torch.cuda.get_device_properties(device).total_memory / (1 + compiled)
    try:
        shape = shape_of(run, 1)
        fits = largest_of(run, shape, memory)
    except ConfigError:
        return run
    tokens = (max(1, fits) + 1) * shape.length  # one row is padding
    return replace(run, optim=replace(run.optim, microbatch_tokens=tokens))


def largest(peak: Callable[[int], float], room: float, most: int) -> int:
    """Return the largest microbatch, 0 to ``most`` records, whose ``peak`` bytes have room.

    Memory grows about evenly with the records, so few calls find it.
    """
    fits, taken = 0, 0.0
    beyond = most + 1
    guess = 1
    while beyond - fits > 1:
        found = peak(guess)
        if found <= room:
            rise = (found - taken) / (guess - fits) if fits else 0.0
            fits, taken = guess, found
            # As far as the last rise leads; at first twice as far.
            more = math.floor((room - taken) / rise) if rise > 0 else fits
            guess = fits + max(1, more)
        else:
            beyond = guess
            guess = (fits + beyond) // 2
        guess = min(max(guess, fits + 1), beyond - 1)
    return fits
