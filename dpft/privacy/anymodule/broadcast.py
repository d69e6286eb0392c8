"""Parameters of shape ``(1, ...)`` that a module owns and broadcasts over the records of a batch.

While the module runs, each record sees a row of its own, ``(B, ...)``, an expanded view. The
gradient of that view is the per-example gradient.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils.parametrize import ParametrizationList

from dpft.privacy.anymodule.recomputation import Arguments, close
from dpft.privacy.clipping.calls import Call, Site
from dpft.privacy.clipping.capture import Capture
from dpft.privacy.clipping.rules import DirectUse, Rule, UnsupportedLayerError, Use
from dpft.privacy.untouched import random_state_kept


class BroadcastRule(Rule):
    """A parameter of shape ``(1, ...)`` that a module owns and broadcasts over its records.

    A module that does something else with the parameter than to broadcast it is found by a trial
    (`takes_rows`), and by the check against autograd.
    """

    def __init__(self, local: str) -> None:
        self.local = local

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        return {self.local: DirectUse(g.unsqueeze(1))}

    def needs_input(self, module: nn.Module) -> bool:
        return False


class Broadcasts:
    """Gives modules rows of the records in the place of a parameter ``(1, ...)``, while they run.

    Args:
        capture: gets the sites of such parameters, and their calls.
        repeated: called for a module that does something else with the parameter.
    """

    def __init__(self, capture: Capture, repeated: Callable[[], None]) -> None:
        self._capture = capture
        self._note_repeated = repeated
        self._replaced: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._fitting: set[tuple[str, tuple[torch.Size, ...]]] = set()
        self._repeated: set[str] = set()
        self._sites: list[Site] = []
        for name, local, _, module in capture.sites.bare:
            # A module that only holds parameters for others is never called: no hooks of it run.
            runs = type(module).forward is not nn.Module.forward
            value = capture.parameters[name]
            runs = runs and not isinstance(module, ParametrizationList)
            if value.dim() > 1 and len(value) == 1 and runs:
                names = MappingProxyType({local: name})
                self._sites.append(Site(name, module, BroadcastRule(local), names))
        capture.sites.layers.update({site.name: site for site in self._sites})

    def install(self) -> None:
        """Put hooks on the modules."""
        for site in self._sites:
            give = partial(self._give_rows, site)
            self._capture.hook(site.module.register_forward_pre_hook(give, with_kwargs=True))
            # Before a hook of FSDP takes the module's parameters away again.
            restore = partial(site.module.register_forward_hook, always_call=True, prepend=True)
            self._capture.hook(restore(self._after))

    def restore(self, module: nn.Module | None = None) -> None:
        """Give a module, or all of them, their parameters back."""
        for owner, local, parameter in self._replaced:
            if module is None or owner is module:
                owner._parameters[local] = parameter
        self._replaced = [x for x in self._replaced if module is not None and x[0] is not module]

    @contextmanager
    def one_row_for_all(self) -> Iterator[None]:
        """Within this context no module has rows in place of a parameter; nothing is captured."""
        rows = [(module, local, module._parameters[local]) for module, local, _ in self._replaced]
        for module, local, parameter in self._replaced:
            module._parameters[local] = parameter
        try:
            with self._capture.paused():
                yield
        finally:
            for module, local, row in rows:
                module._parameters[local] = row

    def _give_rows(
        self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the forward: each record gets a row of its own of the broadcast parameter."""
        ((local, name),) = site.names.items()
        capture = self._capture
        if not capture.captures(site.name) or site.name in self._repeated:
            return
        batch = capture.records()
        if batch is None:
            raise UnsupportedLayerError(
                f"{site.name or 'the model'} ({type(module).__name__}) has parameters of its own, "
                "but the number of records is unknown: the model was called without a tensor, or "
                "a part of it by itself; expected the inputs as the model's arguments, one row per "
                "record"
            )
        if batch > 1:
            capture.spread[site.name] = None
        parameter = module._parameters[local]
        assert parameter is not None
        rows = parameter.expand(batch, *parameter.shape[1:])
        if not self._fits(site, local, rows, args, kwargs):
            return
        self._replaced.append((module, local, parameter))
        module._parameters[local] = rows  # type: ignore[assignment]
        if not capture.in_backward:
            leaves: dict[str, Tensor] = {name: parameter} if capture.sharded else {}
            call = Call(site, None, (get_gradient_edge(rows),), root=True, leaves=leaves)
            capture.add(call, [rows])

    def _fits(
        self, site: Site, local: str, rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Return whether a module takes rows, tried for inputs of every new shape.

        Not where parameters are sharded: there its forward cannot run by itself.
        """
        if len(rows) == 1 or self._capture.sharded:
            return True
        _, tensors = Arguments.of((args, kwargs))
        call = site.name, tuple(x.shape[1:] for x in tensors)
        if call in self._fitting:
            return True
        with self._capture.paused():
            fits = takes_rows(site.module, local, rows, args, kwargs)
        if fits:
            self._fitting.add(call)
        else:
            self._repeated.add(site.name)
            self._note_repeated()
        return fits

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        """After the forward, also one that failed; not after a trial's."""
        if self._capture.enabled:
            self.restore(module)


def takes_rows(
    module: nn.Module, local: str, rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Return whether a module gives each record what its own row makes of it, and nothing else.

    One that repeats the one row, counts its numbers, or adds its rows to positions does not. The
    first record is given another row, without gradients, and of the others nothing may change.
    """
    own = module._parameters[local]
    assert own is not None
    given, tensors = Arguments.of((args, kwargs))

    def outputs(value: Tensor) -> list[Tensor]:
        module._parameters[local] = value  # type: ignore[assignment]
        copies, named = given.filled([x.clone() for x in tensors])  # it may write to them
        with random_state_kept(rows):
            return Arguments.of(module.forward(*copies, **named))[1]

    with torch.no_grad():
        expected = outputs(own)
        try:
            found = outputs(torch.cat([own + 1, rows[1:]]))
            return [y.shape for y in found] == [y.shape for y in expected] and all(
                close(y[1:], whole[1:])
                for y, whole in zip(found, expected, strict=True)
                if y.dim() and len(y) == len(rows)
            )
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return False
        finally:
            module._parameters[local] = own
