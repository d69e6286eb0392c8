"""Nothing but the clipper may add to ``.grad`` while a backward of the clipper runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from dpft.privacy.layers import UnsupportedLayerError


class Guard:
    """Hooks on the parameters that refuse gradients which autograd adds by itself.

    A `torch.autograd.Function` may run layers in its own backward, as reversible blocks do. What
    comes of it is added to ``.grad`` unclipped, and no captured call tells of it.

    Args:
        parameters: the trainable parameters by name.

    Attributes:
        struck: whether a gradient was refused, which is in ``.grad`` by then.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.struck = False
        self._on = False
        self._handles: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._refusing(name))
            for name, parameter in parameters.items()
        ]

    @contextmanager
    def on(self) -> Iterator[None]:
        """Refuse within this context, until it is lifted."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def lift(self) -> None:
        """From here on autograd is to write gradients."""
        self._on = False

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _refusing(self, name: str) -> Any:
        def refuse(parameter: Tensor) -> None:
            if not self._on:
                return
            self.struck = True
            raise UnsupportedLayerError(
                f"a gradient of parameter {name!r} was added to .grad, unclipped, by a backward "
                "inside the backward: some function of the model runs layers again by itself "
                "(reversible blocks, reentrant checkpoints); expected layers that run once. "
                "Checkpoint with use_reentrant=False"
            )

        return refuse
