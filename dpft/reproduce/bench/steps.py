"""What one step is: forward, backward and clipping, without noise and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpft.reproduce.bench.models import Inputs, Workload


@dataclass(frozen=True)
class Step:
    """A variant, ready to run.

    Attributes:
        run: the part that is timed, on a batch of inputs.
        reset: forgets all gradients; not timed, for no variant.
        gradients: what `run` left, to compare variants by.
        clipper: of our own styles.
        check_again: has the next step check layer rules, as a run's first step does.
    """

    run: Callable[[Inputs], None]
    reset: Callable[[], None]
    gradients: Callable[[], Iterable[Tensor]]
    clipper: Any = None
    check_again: Callable[[], None] = lambda: None


def style_step(name: str, workload: Workload, threshold: float, dtype: str) -> Step:
    """One step of a clipping style, or of non-private training for ``none``.

    The latter is that of anybody: its losses are PyTorch's.
    """
    from dpft.privacy import make_clipper

    style, options = style_options(name, workload.blocks)
    if style != "none":
        options["threshold"] = threshold
    clipper = make_clipper(workload.model, style, **options)
    adaptive = clipper.adaptive
    parameters = list(workload.model.parameters())
    own = style != "none"

    def run(inputs: Inputs) -> None:
        # As in training: where rules are to be checked, on some records ahead of the batch.
        some = clipper.to_check(len(next(iter(inputs.values()))))
        if some is not None:
            few = {name: rows[some.to(rows.device)] for name, rows in inputs.items()}
            clipper.check(forward(workload, workload.model, few, dtype, own))
        losses = forward(workload, workload.model, inputs, dtype, own)
        clipper.backward(losses)
        if adaptive is not None:
            # As in training, but for the noise on the counts.
            fractions = (0.5 + clipper.below / len(losses)).tolist()
            clipper.move(adaptive.updated(clipper.estimates, fractions))

    def reset() -> None:
        for parameter in parameters:
            parameter.grad = None

    def gradients() -> list[Tensor]:
        return [p.grad for p in parameters if p.grad is not None]

    return Step(run, reset, gradients, clipper, clipper.reset)


def style_options(name: str, blocks: int) -> tuple[str, dict[str, Any]]:
    """``make_clipper``'s style and keywords for a style as typed, such as ``uniform:6``."""
    style, _, number = name.partition(":")
    if style == "uniform":
        return style, {"count": int(number or min(4, blocks))}
    if style == "two_group":
        return style, {"boundary": int(number or max(1, blocks // 2))}
    return style, {}


def forward(
    workload: Workload, model: nn.Module, inputs: Inputs, dtype: str, own: bool = False
) -> Tensor:
    """Losses of shape ``(B,)``; under autocast for ``bfloat16``, as mixed precision is trained.

    Args:
        workload: what is run.
        model: its model, or a wrapper of it.
        inputs: a batch.
        dtype: of the job.
        own: whether losses are computed as dpft does it.
    """
    losses = workload.own_losses if own else workload.losses
    if dtype != "bfloat16":
        return losses(model, inputs)
    with torch.autocast(next(iter(inputs.values())).device.type, dtype=torch.bfloat16):
        return losses(model, inputs).float()


def weights_dtype(dtype: str) -> torch.dtype:
    """What the parameters are stored in: float32 unless ``float64`` is asked for."""
    return torch.float64 if dtype == "float64" else torch.float32
