"""Nothing but the clipper adds to ``.grad`` in its backward; no other process shares a batch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.cohort import Cohort


class Guard:
    """Hooks on the parameters that refuse gradients which autograd adds by itself.

    A `torch.autograd.Function` may run layers in its own backward, as reversible blocks do. What
    comes of it is added to ``.grad`` unclipped, and no captured call shows it.
    ``received_gradient`` tells whether one was refused, which is in ``.grad`` by then.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.received_gradient = False
        self._on = False
        self._parameters = parameters
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._refuse, name))
            for name, parameter in parameters.items()
        ]

    def check_hooks(self) -> None:
        """Refuse hooks of others on the parameters' gradients, by the parameter's name.

        Sums that autograd forms would go through them, after the norms were taken; the other plans
        write to ``.grad`` by themselves and would pass them by.
        """
        for name, parameter in self._parameters.items():
            after = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
            if parameter._backward_hooks or not all(map(_is_a_guards, after)):
                raise UnsupportedLayerError(
                    f"parameter {name!r} has a hook on its gradient (register_hook or "
                    "register_post_accumulate_grad_hook), which would change sums after they were "
                    "clipped, or never run; expected none on trained parameters: remove it "
                    "(handle.remove()), or change losses before clipping and .grad after the noise"
                )

    @contextmanager
    def on(self) -> Iterator[None]:
        """Refuse within this context, until it is lifted."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def lift(self) -> None:
        """Let autograd write gradients from here on."""
        self._on = False

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _refuse(self, name: str, parameter: Tensor) -> None:
        if self._on:
            self.received_gradient = True
            raise UnsupportedLayerError(
                f"a gradient of parameter {name!r} was added to .grad, unclipped, by a backward "
                "inside the backward: some function of the model runs layers again by itself "
                "(reversible blocks, reentrant checkpoints); expected layers that run once. "
                "Checkpoint with use_reentrant=False"
            )


def _is_a_guards(hook: object) -> bool:
    """Return whether a hook is that of a guard, of this clipper or another one."""
    return isinstance(hook, partial) and getattr(hook.func, "__func__", None) is Guard._refuse


def check_single_process(model: nn.Module | None = None, cohort: Cohort | None = None) -> None:
    """Refuse a model that is wrapped for several devices, and processes that are no cohort."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, wrappers):
            raise UnsupportedLayerError(
                f"{name or 'the model'} is a {type(module).__name__}, which divides batches or "
                "averages gradients by itself; expected the bare module: dpft divides batches and "
                "adds up sums"
            )
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if model is not None and (cohort is None or not cohort.sharded):
        from torch.distributed.tensor import DTensor  # takes long to import, and few need it

        for name, parameter in model.named_parameters():
            if parameter.requires_grad and isinstance(parameter, DTensor):
                raise UnsupportedLayerError(
                    f"parameter {name!r} is sharded over several processes; expected "
                    "make_clipper(..., cohort=dpft.parallel.sharded.Shards()), which adds up sums "
                    "of parts, or a model that is not sharded"
                )
    size = distributed.get_world_size()
    if size > 1 and cohort is None:
        raise UnsupportedLayerError(
            f"this process is one of {size} (torch.distributed); expected a single one, or a "
            "cohort given to make_clipper: each would clip its own share and release it under the "
            "same noise as the others"
        )
