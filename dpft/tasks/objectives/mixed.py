"""Losses in mixed precision: products in bfloat16, everything that is summed in float32.

Li et al. 2022, appendix T, scale the loss for float16 and with it the threshold and the noise.
bfloat16 has the range of float32, so that nothing is scaled and nothing can be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpft.config.errors import ConfigError
from dpft.tasks.objectives.base import Batch, Losses


class Mixed:
    """The losses of an objective, computed under autocast.

    Weights, losses, norms, clipped sums and noise are float32. The gradients that are clipped are
    those of the losses as they were computed. How they are rounded depends on the shapes they are
    computed in: the guarantee holds where those do not depend on other records, see
    `dpft.privacy.shapes`. Predictions are the objective's own, since the weights that are saved
    are float32.
    """

    def __init__(self, objective: Losses) -> None:
        self._objective = objective

    def collate(self, examples: Sequence[Any], widths: Sequence[int] | None = None) -> Batch:
        return self._objective.collate(examples, widths)

    def widths(self, example: Any) -> tuple[int, ...]:
        return self._objective.widths(example)

    def widest(self) -> tuple[int, ...]:
        return self._objective.widest()

    def blank(self) -> Any:
        return self._objective.blank()

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per row, ``(B,)`` in float32."""
        device = next(iter(batch.tensors.values())).device
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return self._objective.losses(model, batch).float()


def check_supported(precision: str, device: torch.device) -> None:
    """Refuse a precision that a device only imitates.

    Raises:
        ConfigError: if it has no arithmetic in bfloat16.
    """
    if (
        precision == "bfloat16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ConfigError(
            f"precision is bfloat16, which {torch.cuda.get_device_name(device)} has no arithmetic "
            "for; type precision=float32"
        )
