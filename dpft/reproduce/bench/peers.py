"""Other implementations, measured as they are meant to be used.

A peer's step ends where ours does: the sum of clipped gradients is formed, nothing is noised.
"""

from typing import Any

import torch
from torch import nn

from dpft.config.errors import ModelError
from dpft.reproduce.bench.catalog import require_peers
from dpft.reproduce.bench.workloads import Inputs, Step, Workload, forward, left_in


def peer_step(name: str, workload: Workload, batch: int, threshold: float, dtype: str) -> Step:
    """Return a step of one of `dpft.reproduce.bench.catalog.PEERS`, which may change the model."""
    require_peers()
    if name.endswith("-linear"):
        swap_conv1d(workload.model)
    build = _ghost if name.startswith("opacus-ghost") else _hooks
    return build(workload, batch, threshold, dtype)


def _hooks(workload: Workload, batch: int, threshold: float, dtype: str) -> Step:
    """Per-example gradients by hooks, then what `DPOptimizer.step` does before noise."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(workload.model, loss_reduction="sum")
    optimizer = _without_noise(DPOptimizer, workload.model, batch, threshold)

    def run(inputs: Inputs) -> None:
        forward(workload, module, inputs, dtype).sum().backward()
        optimizer.clip_and_accumulate()

    return Step(
        run,
        reset=lambda: optimizer.zero_grad(set_to_none=True),
        gradients=lambda: [p.summed_grad for p in optimizer.params],
    )


def _ghost(workload: Workload, batch: int, threshold: float, dtype: str) -> Step:
    """Norms by hooks, then a second backward over reweighted losses, as Opacus' loss does it."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    module = GradSampleModuleFastGradientClipping(
        workload.model, loss_reduction="sum", max_grad_norm=threshold, use_ghost_clipping=True
    )
    optimizer = _without_noise(DPOptimizerFastGradientClipping, workload.model, batch, threshold)

    def run(inputs: Inputs) -> None:
        losses = forward(workload, module, inputs, dtype)
        DPTensorFastGradientClipping(module, optimizer, losses, "sum").backward()

    return Step(
        run,
        reset=lambda: optimizer.zero_grad(set_to_none=True),
        gradients=lambda: left_in(workload.model),
    )


def swap_conv1d(model: nn.Module) -> None:
    """Replace every GPT-2 ``Conv1D`` by an equal ``Linear``, for which Opacus has faster rules."""
    from transformers.pytorch_utils import Conv1D

    found = [name for name, module in model.named_modules() if isinstance(module, Conv1D)]
    if not found:
        raise ModelError(
            "the model has no Conv1D to swap for a Linear: take the peer without -linear"
        )
    for name in found:
        parent, _, child = name.rpartition(".")
        old: Any = model.get_submodule(name)
        inputs, outputs = old.weight.shape
        new = nn.Linear(inputs, outputs, device=old.weight.device, dtype=old.weight.dtype)
        new.weight = nn.Parameter(old.weight.detach().T.contiguous())
        new.bias = old.bias
        setattr(model.get_submodule(parent), child, new)


def _without_noise(optimizer: Any, model: nn.Module, batch: int, threshold: float) -> Any:
    """Return an optimizer of Opacus over one that never steps, without noise."""
    return optimizer(
        torch.optim.SGD(model.parameters(), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=threshold,
        expected_batch_size=batch,
        loss_reduction="sum",
    )
