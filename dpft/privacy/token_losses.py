"""Losses of tokens, with logits of a whole vocabulary held once.

Logits ``(B, T, V)`` are the largest tensor of a small language model's step, or of a large one's
with adapters. PyTorch's cross entropy holds three tensors of that size in its backward in addition:
log-probabilities, the gradient with respect to those, and the logits' gradient.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""In targets, a position without a loss."""

# Numbers worked on at a time: few compared with all logits, many enough that a call costs little.
_PIECE = 2**18
_SHARE = 32


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each token, as `torch.nn.functional.cross_entropy` computes it.

    The backward writes the logits' gradient in their place, unless the graph is kept for another
    one, or their memory is a parameter's or holds one number for several. A caller that uses
    them after that must copy them; autograd raises an error where it is affected. There is no
    second derivative.

    Args:
        logits: ``(B, T, V)``.
        targets: ``(B, T)`` in int64, `IGNORED` where there is none.

    Returns:
        ``(B, T)`` in float32, or float64 where the logits are; zero where there is no target.
    """
    losses: Tensor = TokenLosses.apply(logits, targets)  # type: ignore[no-untyped-call]
    return losses


class TokenLosses(torch.autograd.Function):
    """The function of `token_losses`: a token's loss depends on that token's logits alone."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.in_place = _is_spare(logits)
        found = [_losses(some, those) for some, those in _pieces(logits, targets)]
        return torch.cat(found).view(targets.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # gradients would be constants in it, silently
            raise RuntimeError(
                "token_losses has no second derivative; expected create_graph=False, or "
                "torch.nn.functional.cross_entropy"
            )
        logits, targets = ctx.saved_tensors
        logits = logits.detach()  # of one version with the logits: a change in place is seen
        in_place = ctx.in_place and not _graph_is_kept()
        out = logits if in_place else torch.empty_like(logits)
        for some, those, factors, place in _pieces(logits, targets, gradient, out):
            with torch.enable_grad():
                some = some.detach().requires_grad_()
                losses = _losses(some, those)
            (found,) = torch.autograd.grad(losses, some, factors)
            place.copy_(found)
        return out, None


def _is_spare(logits: Tensor) -> bool:
    """Return whether neither weights nor other logits share the logits' memory."""
    made = logits if logits._base is None else logits._base
    shared = any(
        stride == 0 < size - 1 for stride, size in zip(logits.stride(), logits.shape, strict=True)
    )
    return not (made.is_leaf or shared)


# Torch has no public name for it. Where a version has none at all, the memory is not used again.
_graph_is_kept: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """``(n, V)`` and ``(n,)`` to ``(n,)``."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)


def _pieces(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Iterate over views of some tokens: ``(n, V)`` of ``(B, T, V)``, ``(n,)`` of ``(B, T)``."""
    size = max(1, max(_PIECE, logits.numel() // _SHARE) // logits.shape[-1])
    every = (logits, *others)
    runs: Iterable[tuple[Tensor, ...]] = zip(*every, strict=True)
    if logits.is_contiguous():  # part of longer logits has no view as one sequence
        runs = [tuple(x.flatten(0, 1) for x in every)]
    for run in runs:
        yield from zip(*(x.split(size) for x in run), strict=True)
