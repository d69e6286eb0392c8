"""How a block that is being compiled tells its layers' calls: see `compiled`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules import UnsupportedLayerError

# Of the block that is being traced: the tokens that it is given, and the inputs that it returns.
OPEN: list[tuple[Sequence[Tensor], list[Tensor]]] = []


_BY_OTHERS = (
    "a layer of the clipper is compiled by torch.compile, and cannot be heard there; expected the "
    "module itself, and clipper.compile() to compile its blocks"
)


class _Tap(torch.autograd.Function):
    """A layer's output, whose gradient is the token's gradient too."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], gradients[0]


class Token(torch.autograd.Function):
    """A tensor of some shape that takes no memory; its gradient goes nowhere."""

    @staticmethod
    def forward(
        ctx: Any, root: Tensor, shape: torch.Size, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.zeros((), dtype=dtype, device=device).expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.empty(0), None, None, None


def tap(args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """After a layer's forward, while its block is traced.

    Raises:
        UnsupportedLayerError: if somebody else compiles the model.
    """
    if not OPEN:
        raise UnsupportedLayerError(_BY_OTHERS)
    tokens, inputs = OPEN[-1]
    a = args[0] if args else next(iter(kwargs.values()))
    token = tokens[len(inputs)]
    inputs.append(a.detach())
    return _Tap.apply(output, token)  # type: ignore[no-untyped-call]


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a model that somebody has compiled, or a part of it.

    Raises:
        UnsupportedLayerError: naming the part.
    """
    for name, module in model.named_modules():
        forward = vars(module).get("forward")
        if (
            isinstance(getattr(module, "_orig_mod", None), nn.Module)
            or module._compiled_call_impl is not None
            or hasattr(forward, "_torchdynamo_orig_callable")
        ):
            raise UnsupportedLayerError(
                f"{name or 'the model'} ({type(module).__name__}) was compiled by torch.compile, "
                "inside which layers cannot be heard; expected the module itself (what "
                "torch.compile was given: compiled._orig_mod), and clipper.compile() to compile "
                "its blocks"
            )
