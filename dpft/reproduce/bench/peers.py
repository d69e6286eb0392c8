"""One step of Opacus, for comparison; it ends where ours does: clipped gradients are summed."""

from typing import Any

import torch
from torch import Tensor, nn

from dpft.config.errors import ModelError
from dpft.reproduce.bench.workloads import Inputs, Step, Workload, left_in, losses


def peer_step(name: str, workload: Workload, batch: int, threshold: float, dtype: str) -> Step:
    """Return a step of one of `dpft.reproduce.bench.catalog.PEERS`, which may change the model.

    ``opacus`` has per-example gradients by hooks, then what `DPOptimizer.step` does before noise;
    ``opacus-ghost`` norms by hooks, then a second backward over reweighted losses.
    """
    from opacus import grad_sample, optimizers
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model = workload.model
    if name.endswith("-linear"):
        swap_conv1d(model)
    ghost = name.startswith("opacus-ghost")
    wrapper: Any = grad_sample.GradSampleModule
    kind: Any = optimizers.DPOptimizer
    options: dict[str, Any] = {}
    if ghost:
        wrapper = grad_sample.GradSampleModuleFastGradientClipping
        kind = optimizers.DPOptimizerFastGradientClipping
        options = {"max_grad_norm": threshold, "use_ghost_clipping": True}
    module = wrapper(model, loss_reduction="sum", **options)
    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=0.0),  # never steps
        noise_multiplier=0.0,
        max_grad_norm=threshold,
        expected_batch_size=batch,
        loss_reduction="sum",
    )

    def run(inputs: Inputs) -> None:
        found = losses(workload, module, inputs, dtype)
        if ghost:
            DPTensorFastGradientClipping(module, optimizer, found, "sum").backward()
        else:
            found.sum().backward()
            optimizer.clip_and_accumulate()

    def gradients() -> list[Tensor]:
        return left_in(model) if ghost else [p.summed_grad for p in optimizer.params]

    return Step(run, lambda: optimizer.zero_grad(set_to_none=True), gradients)


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
