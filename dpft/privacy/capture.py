"""Capturing layer calls: inputs by forward hooks, outputs by their place in the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from dpft.privacy.layers import Rule, UnsupportedLayerError, find_rule, rule_names


@dataclass
class Call:
    """One captured forward call of one layer."""

    name: str
    module: nn.Module
    rule: Rule
    a: Tensor
    output: GradientEdge


@dataclass(frozen=True)
class Site:
    """A layer that owns trainable parameters: its rule and its parameters' canonical names."""

    name: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


class Capture:
    """Hooks on every layer of ``sites``; `take` hands over the calls since the last time."""

    def __init__(self, model: nn.Module, sites: Mapping[str, Site]) -> None:
        self.sites = sites
        self.calls: list[Call] = []
        self._batch: int | None = None
        self._enabled = True
        self._handles: list[Any] = []
        if sites:
            self._install(model)

    def take(self) -> list[Call]:
        """The captured calls, in order, which are then forgotten here."""
        calls, self.calls = self.calls, []
        self._batch = None
        return calls

    def _install(self, model: nn.Module) -> None:
        self._handles.append(model.register_forward_pre_hook(self._note_batch, with_kwargs=True))
        for site in self.sites.values():
            if isinstance(site.module, nn.Embedding):
                hook = site.module.register_forward_pre_hook(self._expand_positions)
                self._handles.append(hook)
            self._handles.append(
                site.module.register_forward_hook(self._capture(site), with_kwargs=True)
            )

    def _note_batch(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() > 0)
        first = next(tensors, None)
        self._batch = None if first is None else len(first)

    def _expand_positions(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Give a lookup shared by the batch (positions of shape (1, T)) one row per record."""
        if self._active() and args and self._batch is not None:
            ids = args[0]
            if isinstance(ids, Tensor) and ids.dim() > 1 and len(ids) == 1 < self._batch:
                return (ids.expand(self._batch, *ids.shape[1:]), *args[1:])
        return None

    def _capture(self, site: Site) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            if not self._active() or not isinstance(output, Tensor) or not output.requires_grad:
                return
            a = args[0] if args else next(iter(kwargs.values()))
            # The edge, not the tensor: a later in-place change of the output cannot redirect it,
            # and the output's memory (a head's logits, say) is not kept alive.
            edge = get_gradient_edge(output)
            self.calls.append(Call(site.name, module, site.rule, a.detach(), edge))

        return hook

    def _active(self) -> bool:
        return self._enabled and torch.is_grad_enabled()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context forward passes are not captured."""
        before, self._enabled = self._enabled, False
        try:
            yield
        finally:
            self._enabled = before

    def close(self) -> None:
        """Remove all hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.calls.clear()


def find_sites(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], rules: Mapping[str, Rule]
) -> dict[str, Site]:
    """The layers to hook, one entry per module; every trainable parameter must lie in one."""
    canonical = {id(parameter): name for name, parameter in parameters.items()}
    sites: dict[str, Site] = {}
    unsupported: list[str] = []
    for module_name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and (
            module.track_running_stats or isinstance(module, nn.modules.batchnorm._BatchNorm)
        ):
            raise UnsupportedLayerError(
                f"{module_name or 'the model'} ({type(module).__name__}) mixes or keeps statistics "
                "of the records of a batch, trained or frozen; expected a layer that treats each "
                "record alone, such as GroupNorm"
            )
        own = {
            local: canonical[id(parameter)]
            for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in canonical
        }
        if not own:
            continue
        rule = find_rule(module, rules)
        if rule is None:
            unsupported += [f"{name} ({type(module).__name__})" for name in own.values()]
            continue
        sites[module_name] = Site(module_name, module, rule, MappingProxyType(own))
    if unsupported:
        raise UnsupportedLayerError(
            f"no clipping rule for {len(unsupported)} trainable parameter(s): "
            f"{', '.join(unsupported)}. Layers with a rule: {rule_names(rules)}. Freeze the "
            "parameters (requires_grad_(False)) or pass rules={'module.Class': rule}"
        )
    return sites
