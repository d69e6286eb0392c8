"""Losses in mixed precision: products in bfloat16, everything that is summed in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpft.config.errors import ConfigError, ModelError
from dpft.tasks.objectives.evaluation import not_finite_on_a_blank
from dpft.tasks.objectives.objective import Batch, Losses

if TYPE_CHECKING:
    from dpft.privacy import Clipper


class Mixed:
    """The losses of an objective, computed under autocast in bfloat16.

    Weights, losses, norms, clipped sums and noise are float32. Gradients are rounded differently in
    different shapes: the guarantee holds where shapes do not depend on other records, see
    `dpft.privacy.shapes`. Predictions are the objective's own, since saved weights are float32.
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
