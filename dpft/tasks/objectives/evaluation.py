"""Modes of a model: batches of an evaluation, which processes share, and mixed precision.

In mixed precision products are in bfloat16, and everything that is summed is in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpft.config.errors import ConfigError, ModelError
from dpft.parallel.cohort import together
from dpft.privacy.checks import random_state_kept
from dpft.tasks.objectives.objective import Batch, Losses
from dpft.tasks.views import blocks

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort
    from dpft.privacy import Clipper

B = TypeVar("B")
A = TypeVar("A")

# Batches that each rank answers before all meet. With one, the slowest text of each round decides:
# 630 prompts of E2E on four ranks took 1.28 times their share, with four 1.09.
_ROUND = 4
_DROPOUTS = frozenset(
    {
        *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
        *(F.feature_alpha_dropout, torch.dropout, torch.alpha_dropout, torch.feature_dropout),
        torch.feature_alpha_dropout,
    }
)
# Where scaled_dot_product_attention takes its share of dropout.
_DROPOUT_PLACE = 4

# Layers that drop whole residual branches of some rows; they do nothing in evaluation. One of
# torchvision may drop a branch of all rows instead (``mode="batch"``), which is no dropout.
_PATHS = ("DropPath", "StochasticDepth")

# How transformers marks a block whose activations are not kept.
_CHECKPOINTED = "gradient_checkpointing"


class Undropped(TorchFunctionMode):
    """Turn dropout off, and note in ``sizes`` how many numbers each call would have masked."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            names = ("input", "p", "train" if "train" in kwargs else "training")
            given = {"p": 0.5, names[2]: True} | dict(zip(names, args, strict=False)) | kwargs
            if given["p"] and given[names[2]]:
                self.sizes.append(given["input"].numel())
            return given["input"]
        if func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
            if len(args) > _DROPOUT_PLACE:
                rest = args[_DROPOUT_PLACE + 1 :]
                args = (*args[:_DROPOUT_PLACE], kwargs.pop("dropout_p"), *rest)
        return func(*args, **kwargs)


@contextmanager
def training_without_dropout(model: nn.Module) -> Iterator[Undropped]:
    """Put a model in training mode without dropout; restore mode and random state at the end."""
    modes = {module: module.training for module in model.modules()}
    # A block that is computed again in the backward would be outside of the mode, and drop there.
    again = [module for module in modes if getattr(module, _CHECKPOINTED, False) is True]
    model.train()
    for module in modes:
        of_rows = getattr(module, "mode", None) != "batch"
        if of_rows and any(name in type(module).__name__ for name in _PATHS):
            module.eval()
    for module in again:
        setattr(module, _CHECKPOINTED, False)
    try:
        with random_state_kept(*model.parameters()), Undropped() as undropped:
            yield undropped
    finally:
        for module, training in modes.items():
            module.training = training
        for module in again:
            setattr(module, _CHECKPOINTED, True)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; restore its mode at the end.

    Where what is frozen is in bfloat16 and what is trained in float32, layers meet under autocast.
    """
    training = model.training
    types = {p.dtype: p.device.type for p in model.parameters()}
    mixed = {torch.bfloat16, torch.float32} <= types.keys()
    model.eval()
    try:
        with torch.autocast(types.get(torch.float32, "cpu"), torch.bfloat16, enabled=mixed):
            yield
    finally:
        model.train(training)


def in_batches(
    model: nn.Module,
    examples: Sequence[Any],
    size: int,
    answer: Callable[[list[int]], list[A]],
    cohort: TrainingCohort | None,
    advance: Callable[[int], None] = lambda count: None,
) -> list[A]:
    """Return the answer to each example, asked in batches of similar length, the longest first.

    A batch that does not fit in memory then fails at once. ``answer`` is given indices of examples.
    """
    order = sorted(range(len(examples)), key=lambda i: -examples[i].length)
    found: dict[int, A] = {}
    with evaluating(model):
        for chosen, answers in answered(list(blocks(order, size)), answer, cohort):
            found.update(zip(chosen, answers, strict=True))
            advance(len(chosen))
    return [found[i] for i in range(len(examples))]


def not_finite_on_a_blank(
    objective: Losses, model: nn.Module, parameters: Sequence[Tensor] = ()
) -> str | None:
    """Return what is not finite for a padding example: ``loss``, ``gradient`` or None.

    Guarantee: it follows from the weights alone, so that it may be reported for released ones.
    Gradients are those of ``parameters``.
    """
    blank = objective.blank()
    batch = objective.collate([blank], objective.widths(blank)).to(next(model.parameters()).device)
    with evaluating(model), torch.set_grad_enabled(bool(parameters)):
        losses = objective.losses(model, batch)
        if not losses.isfinite().all():
            return "loss"
        if not parameters:
            return None
        slopes = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
    finite = all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)
    return None if finite else "gradient"


def answered(
    batches: Sequence[B], answer: Callable[[B], list[A]], cohort: TrainingCohort | None
) -> Iterator[tuple[B, list[A]]]:
    """Yield each batch with its answers, in order and on every rank; one rank computes a batch.

    A batch, and with it its padding and rounding, is the same whatever the number of ranks.
    Neighbours, which are about equally long, go to different ranks. A rank that fails ends all
    within a round of a few batches. What is random in an answer depends on the batch alone.

    Raises:
        RankError: another rank failed, or has other batches.
    """
    if cohort is None or cohort.size == 1:
        for batch in batches:
            yield batch, answer(batch)
        return
    cohort.barrier(word=repr(batches))
    for first in range(0, len(batches), _ROUND * cohort.size):
        dealt = batches[first : first + _ROUND * cohort.size]
        with together(cohort):
            mine = [answer(batch) for batch in dealt[cohort.rank :: cohort.size]]
        shares = cohort.all_gather(mine)
        for place, batch in enumerate(dealt):
            yield batch, shares[place % cohort.size][place // cohort.size]


class Mixed:
    """The losses of an objective, computed under autocast in bfloat16.

    Weights, losses, norms, clipped sums and noise are float32. Gradients are rounded differently in
    different shapes: the guarantee holds where shapes do not depend on other records, see
    `dpft.privacy.sampling`. Predictions are the objective's own, by weights as they are saved.
    """

    def __init__(self, objective: Losses) -> None:
        self._objective = objective

    def collate(self, examples: Sequence[Any], widths: Sequence[int] | None = None) -> Batch:
        return self._objective.collate(examples, widths)

    def widths(self, example: Any, coarse: bool = False) -> tuple[int, ...]:
        return self._objective.widths(example, coarse)

    def widest(self) -> tuple[int, ...]:
        return self._objective.widest()

    def blank(self) -> Any:
        return self._objective.blank()

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return one loss per row, ``(B,)`` in float32."""
        device = next(iter(batch.tensors.values())).device
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return self._objective.losses(model, batch).float()


def check_blank(
    trained: Losses, model: nn.Module, clipper: Clipper, precision: str, sharded: bool = False
) -> None:
    """Raise ModelError if the loss of a padding example, or its gradient, is not finite.

    Every record's would not be finite either, and a run would leave all of them out. Where ranks
    hold parts of the parameters (``sharded``), there are no whole gradients to check.
    """
    parameters: Sequence[Tensor] = () if sharded else [*clipper.parameters.values()]
    with clipper.paused():
        what = not_finite_on_a_blank(trained, model, parameters)
    if what is not None:
        other = "" if precision == "float32" else ", or type precision=float32"
        raise ModelError(
            f"{type(model).__name__} has no finite {what} for an empty record, so it would learn "
            "from none: its weights are no numbers, or its attention makes none of padding, as "
            f"some kernels of some GPUs do; use another model or another version of torch{other}"
        )


def check_supported(precision: str, device: torch.device) -> None:
    """Raise ConfigError for bfloat16 on a device that only emulates it."""
    if (
        precision == "bfloat16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ConfigError(
            f"precision is bfloat16, which {torch.cuda.get_device_name(device)} has no arithmetic "
            "for; type precision=float32"
        )
