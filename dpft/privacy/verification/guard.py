"""Nothing but the clipper adds to ``.grad`` in its backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from dpft.privacy.clipping.clipper import Clipper, Observer
from dpft.privacy.clipping.rules import UnsupportedLayerError


class Guard(Observer):
    """Hooks on the parameters that refuse gradients which autograd adds by itself.

    A `torch.autograd.Function` may run layers in its own backward, as reversible blocks do. What
    comes of it is added to ``.grad`` unclipped, and no captured call shows it.
    ``broken`` is true once one was refused, which is in ``.grad`` by then.
    """

    def __init__(self, clipper: Clipper) -> None:
        self._on = False
        self._parameters = clipper.parameters
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._refuse, name))
            for name, parameter in clipper.parameters.items()
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
    def watching(self) -> Iterator[None]:
        """Refuse within this context, until autograd is to write."""
        self.check_hooks()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def before_autograd_writes(self) -> None:
        self._on = False

    def reset(self) -> None:
        self.broken = False

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _refuse(self, name: str, parameter: Tensor) -> None:
        if self._on:
            self.broken = True
            raise UnsupportedLayerError(
                f"a gradient of parameter {name!r} was added to .grad, unclipped, by a backward "
                "inside the backward: some function of the model runs layers again by itself "
                "(reversible blocks, reentrant checkpoints); expected layers that run once. "
                "Checkpoint with use_reentrant=False"
            )


def _is_a_guards(hook: object) -> bool:
    """Return whether a hook is that of a guard, of this clipper or another one."""
    return isinstance(hook, partial) and getattr(hook.func, "__func__", None) is Guard._refuse
