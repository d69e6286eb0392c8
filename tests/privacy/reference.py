"""The brute-force answer: one ordinary backward per record, nothing clever."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy import Clipper, make_clipper
from dpft.privacy.clipping.clipper import Sums
from dpft.privacy.program import Program


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
    weights: Sequence[float] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms (B, K) and the weighted sum of the records' gradients, each group clipped by itself."""
    total = {n: torch.zeros_like(g) for n, g in records[0].items()}
    norms = torch.zeros(len(records), len(groups), dtype=next(iter(total.values())).dtype)
    for i, grads in enumerate(records):
        for k, names in enumerate(groups):
            norms[i, k] = torch.sqrt(sum(grads[n].square().sum() for n in names))
            c = factor(k, norms[i, k]) * (1.0 if weights is None else weights[i])
            for n in names:
                total[n] += c * grads[n]
    return norms, total


def clip_as(clipper: Clipper, records: Sequence[dict[str, Tensor]]) -> tuple[Tensor, dict]:
    """The same with a clipper's groups and thresholds."""
    groups, limits = [group.parameters for group in clipper.groups], clipper.thresholds
    return clip_records(records, groups, lambda k, n: min(1.0, limits[k] / n))


def loop_of(
    model: nn.Module, clipper: Clipper, record_loss: Callable[[int], Tensor], batch: int
) -> tuple[Tensor, dict]:
    """The same from the records' losses, which the clipper does not capture."""
    with clipper.paused():
        return clip_as(clipper, record_gradients(model, record_loss, batch))


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


def compare(
    model: nn.Module,
    clipper: Clipper,
    losses: Tensor,
    expected: tuple[Tensor, dict[str, Tensor]],
    tolerance: float = 1e-10,
) -> None:
    """The clipper leaves these norms and sums."""
    clear(model)
    clipper.backward(losses)
    torch.testing.assert_close(clipper.norms, expected[0], rtol=tolerance, atol=tolerance)
    same_grads(model, expected[1], tolerance)


def program_of(
    clipper: Clipper,
    case: Any,
    rows: int = 1,
    weights: Tensor | None = None,
    backend: str = "graph",
    losses: Any = None,
) -> Program:
    """The program of a case's records, as they are in its order of tensors."""

    def of_units(tensors: Sequence[Tensor]) -> Tensor:
        data = dict(zip(case.data, tensors, strict=True))
        return (losses or case.losses)(case.model, data).view(-1, rows).mean(1)

    tensors = [x.repeat_interleave(rows, 0) for x in case.data.values()]
    clipper.backward(of_units(tensors), rows=rows)  # with all checks
    case.model.zero_grad()
    return Program(clipper, of_units, tensors, weights, rows, backend)


def same_sums(
    found: Sums, clipper: Clipper, total: dict[str, Tensor], tolerance: float = 1e-10
) -> None:
    for name, own in zip(clipper.parameters, found.sums, strict=True):
        torch.testing.assert_close(own, total[name], rtol=tolerance, atol=tolerance)


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
    expected = loop_of(model, clipper, lambda i: losses_of(slice(i, i + 1))[0], batch)
    for _ in range(2):  # the first batch of a kind is verified, the second takes the short way
        compare(model, clipper, losses_of(slice(0, batch)), expected, tolerance)
    return clipper
