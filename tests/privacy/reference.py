"""The brute-force answer: one ordinary backward per record, nothing clever."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy import Clipper, make_clipper


def reference_clip(
    model: nn.Module,
    record_loss: Callable[[int], Tensor],
    batch: int,
    factor: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms (B,) and the clipped sum of each trainable parameter, record by record."""
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    norms, total = reference_clip_groups(model, record_loss, batch, [names], lambda k, n: factor(n))
    return norms[:, 0], total


def reference_clip_groups(
    model: nn.Module,
    record_loss: Callable[[int], Tensor],
    batch: int,
    groups: Sequence[Sequence[str]],
    factor: Callable[[int, Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same for groups of parameter names: norms (B, K), each group clipped by itself."""
    return clip_records(record_gradients(model, record_loss, batch), groups, factor)


def record_gradients(
    model: nn.Module, record_loss: Callable[[int], Tensor], batch: int
) -> list[dict[str, Tensor]]:
    """Each record's gradient of every trainable parameter, zeros where it takes no part."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    records = []
    for i in range(batch):
        found = torch.autograd.grad(record_loss(i), list(parameters.values()), allow_unused=True)
        pairs = zip(found, parameters.items(), strict=True)
        records.append({n: torch.zeros_like(p) if g is None else g for g, (n, p) in pairs})
    return records


def clip_records(
    records: Sequence[dict[str, Tensor]],
    groups: Sequence[Sequence[str]],
    factor: Callable[[int, Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms (B, K) and the sum of the records' gradients, each group clipped by itself."""
    total = {n: torch.zeros_like(g) for n, g in records[0].items()}
    norms = torch.zeros(len(records), len(groups), dtype=next(iter(total.values())).dtype)
    for i, grads in enumerate(records):
        for k, names in enumerate(groups):
            norms[i, k] = torch.sqrt(sum(grads[n].square().sum() for n in names))
            c = factor(k, norms[i, k])
            for n in names:
                total[n] += c * grads[n]
    return norms, total


def clear(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def grads_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


def same_grads(model: nn.Module, total: dict[str, Tensor], tolerance: float) -> None:
    """Every trainable parameter's ``.grad`` is what is given, relatively and absolutely."""
    found = grads_of(model)
    left, right = (torch.cat([of[n].flatten() for n in found]) for of in (found, total))
    if torch.allclose(left, right, rtol=tolerance, atol=tolerance):
        return  # one comparison takes a tenth of the time of one for each parameter
    for name, grad in found.items():
        torch.testing.assert_close(
            grad, total[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    raise AssertionError("gradients differ as a whole, but no parameter's does")


def equals_loop(
    model: nn.Module,
    losses_of: Callable[[slice], Tensor],
    batch: int,
    style: str,
    threshold: float = 0.7,
    tolerance: float = 1e-10,
    **options: Any,
) -> Clipper:
    """Norms and sums of ``losses_of(rows)`` are the loop's; returns the clipper, still attached."""
    clipper = make_clipper(model, style, threshold=threshold, **options)
    parts, limits = [group.parameters for group in clipper.groups], clipper.thresholds
    with clipper.paused():
        records = record_gradients(model, lambda i: losses_of(slice(i, i + 1))[0], batch)
    norms, total = clip_records(records, parts, lambda k, n: min(1.0, limits[k] / n))
    for _ in range(2):  # the first batch of a kind is verified, the second takes the short way
        clear(model)
        clipper.backward(losses_of(slice(0, batch)))
        torch.testing.assert_close(clipper.norms, norms, rtol=tolerance, atol=tolerance)
        same_grads(model, total, tolerance)
    return clipper
