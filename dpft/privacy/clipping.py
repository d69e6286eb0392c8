"""The clipper: sums of clipped per-example gradients, at nearly the cost of ordinary training.

Forward hooks keep each layer's input ``a`` and a handle on its output's place in the autograd
graph. ``torch.autograd.grad`` of the summed losses at those places yields every output gradient
``g`` without forming one weight gradient, while the parameters keep ``requires_grad=True``:
optimizers, checkpoints and adapters see an ordinary model. From ``(a, g)`` the layer rules compute
per-example norms, and one of these plans forms the sum:

========== ================================================================================
plan       how ``sum_i c_i G_i`` is formed
========== ================================================================================
none       not clipped: an ordinary backward (non-private training)
flat       per-example gradients are materialised, then weighted and summed (as Opacus does)
ghost      a second backward over the losses reweighted by ``c_i`` (Li et al. 2022)
bk         from the kept ``(a, g)``: one backward in all, book-keeping (Bu et al. 2023)
========== ================================================================================

All plans leave the same sum in ``.grad``, to float accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from dpft.privacy import groups as partitions
from dpft.privacy.groups import Group
from dpft.privacy.layers import (
    RULES,
    Rule,
    Use,
    exact_squared_norm,
    find_rule,
    joint_per_example,
    joint_squared_norm,
    rule_names,
)


class UnsupportedLayerError(ValueError):
    """A trainable parameter, or a use of one, cannot be clipped exactly. It is never skipped."""


def abadi(norms: Tensor, threshold: float) -> Tensor:
    """``min(1, C/n)`` (Abadi et al. 2016): gradients shorter than ``C`` pass unchanged."""
    return (threshold / norms).clamp(max=1.0)


def automatic(norms: Tensor, threshold: float) -> Tensor:
    """``C/(n + 0.01)`` (Bu et al. 2023, eq. 4, whose ``C`` is 1): no gradient exceeds ``C``."""
    return threshold / (norms + 0.01)


ClipFunction = Callable[[Tensor, float], Tensor]
CLIP_FUNCTIONS: Mapping[str, ClipFunction] = MappingProxyType(
    {"abadi": abadi, "automatic": automatic}
)

# A style is a named choice of plan (and, from the next milestone on, of groups and thresholds).
STYLES: Mapping[str, str] = MappingProxyType(
    {"none": "none", "flat": "flat", "ghost": "ghost", "bk": "bk"}
)


@dataclass
class _Call:
    """One captured forward call of one layer."""

    name: str
    module: nn.Module
    rule: Rule
    a: Tensor
    output: GradientEdge


@dataclass(frozen=True)
class _Site:
    """A layer that owns trainable parameters: its rule and its parameters' canonical names."""

    name: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


class Clipper:
    """Leaves the sum of clipped per-example gradients in ``.grad``. Built by `make_clipper`.

    Attributes:
        parameters: the trainable parameters by name; a tied parameter appears once.
        groups: the clipping groups; empty for ``none``.
        norms: per-example gradient norms of the last `backward`, shape ``(B, K)``.
        factors: the clip factors applied by the last `backward`, shape ``(B, K)``. A record whose
            gradient is not finite has factor 0: it contributes nothing.

    Guarantee: adding or removing one record changes the sum by at most `sensitivity` in L2 norm,
    provided that ``losses[i]`` depends on record ``i`` alone.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: str,
        parameters: Mapping[str, nn.Parameter],
        groups: Sequence[Group],
        clip_function: ClipFunction,
        rules: Mapping[str, Rule],
    ) -> None:
        self.plan = plan
        self.parameters = MappingProxyType(dict(parameters))
        self.groups = tuple(groups)
        self.norms = torch.empty(0, len(self.groups))
        self.factors = torch.empty(0, len(self.groups))
        self._clip_function = clip_function
        self._calls: list[_Call] = []
        self._batch: int | None = None
        self._capturing = True
        self._verified: set[tuple[str, ...]] = set()
        self._handles: list[Any] = []
        self._sites = {} if plan == "none" else _sites(model, self.parameters, rules)
        if self._sites:
            self._install(model)

    @property
    def private(self) -> bool:
        return bool(self.groups)

    @property
    def thresholds(self) -> tuple[float, ...]:
        return tuple(group.threshold for group in self.groups)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of what `backward` leaves in ``.grad``, infinite for ``none``."""
        return partitions.sensitivity(self.thresholds) if self.private else float("inf")

    def backward(self, losses: Tensor) -> None:
        """Add ``sum_i clip(g_i)`` to each parameter's ``.grad``.

        Args:
            losses: one loss per record, shape ``(B,)``; nothing may be summed or averaged across
                records. May be empty: then nothing is added.

        Raises:
            ValueError: if ``losses`` is not one-dimensional.
            UnsupportedLayerError: if a layer's batch cannot be told apart by record, or if a
                parameter is used in a way that was not captured.
        """
        if losses.dim() != 1:
            raise ValueError(
                f"losses have shape {tuple(losses.shape)}; expected one loss per record, shape "
                "(B,): use reduction='none' and reduce within each record only"
            )
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        calls, self._calls = self._calls, []
        self.norms = losses.new_empty(len(losses), len(self.groups))
        self.factors = self.norms.clone()
        if len(losses) == 0:
            return
        if not self.private:
            losses.sum().backward()
            return
        if not calls:
            raise UnsupportedLayerError(
                "no layer's forward was captured for these losses; expected the model to be called "
                "once per backward, with gradients enabled, after make_clipper"
            )
        self._clip(losses, self._collect(losses, calls))

    def _collect(self, losses: Tensor, calls: list[_Call]) -> dict[str, list[Use]]:
        """The first backward: output gradients only, turned into uses by parameter name."""
        signature = tuple(call.name for call in calls)
        unknown = signature not in self._verified
        gradients = torch.autograd.grad(
            losses.sum(),
            [call.output for call in calls],
            retain_graph=unknown or self.plan == "ghost",
            allow_unused=True,
        )
        reached = [(call, g) for call, g in zip(calls, gradients, strict=True) if g is not None]
        uses: dict[str, list[Use]] = {}
        if unknown:
            self._verify_uses(losses, [call for call, _ in reached])
        with torch.no_grad():
            for call, g in reached:
                _check_batch(call, len(losses), g)
                names = self._sites[call.name].names
                for local, use in call.rule(call.module, call.a, g).items():
                    uses.setdefault(names[local], []).append(use)
        if unknown and bool(torch.isfinite(losses).all()):
            self._verify_sums(losses, uses)
            self._verified.add(signature)
        return uses

    @torch.no_grad()
    def _clip(self, losses: Tensor, uses: dict[str, list[Use]]) -> None:
        materialised: dict[str, Tensor] = {}
        if self.plan == "flat":
            materialised = {name: joint_per_example(joined) for name, joined in uses.items()}
        squared = self._squared_norms(uses, materialised, losses)
        # One record's overflow must not reach the others: it is silenced, exactly, and counted.
        dropped = ~torch.isfinite(squared).all(1) | ~torch.isfinite(losses)
        any_dropped = bool(dropped.any())
        self.norms = squared.clamp(min=0).sqrt()
        self.factors = torch.stack(
            [
                self._clip_function(self.norms[:, k], group.threshold)
                for k, group in enumerate(self.groups)
            ],
            dim=1,
        )
        if any_dropped:
            self.factors = self.factors.masked_fill(dropped[:, None], 0.0)
            uses = {name: [use.without(dropped) for use in joined] for name, joined in uses.items()}
            materialised = {}
        if self.plan == "ghost" and not any_dropped:
            uses.clear()
            with torch.enable_grad():
                reweighted = (losses * self.factors[:, 0]).sum()
                reweighted.backward(inputs=list(self.parameters.values()))
            return
        for k, group in enumerate(self.groups):
            weights = self.factors[:, k]
            for name in group.parameters:
                out = self.parameters[name].grad
                assert out is not None
                if name in materialised:
                    out += torch.tensordot(weights, materialised.pop(name), dims=1)
                    continue
                for use in uses.pop(name, []):
                    use.add_weighted_sum(weights, out)

    def _squared_norms(
        self, uses: Mapping[str, list[Use]], materialised: Mapping[str, Tensor], losses: Tensor
    ) -> Tensor:
        """Squared norms by group, ``(B, K)``."""
        found = {
            name: joint_squared_norm(u) for name, u in uses.items() if name not in materialised
        }
        values = {name: norm.value for name, norm in found.items()}
        values |= {name: g.flatten(1).square().sum(1) for name, g in materialised.items()}
        if found:
            doubtful = torch.stack([norm.doubtful() for norm in found.values()])
            if bool(doubtful.any()):  # one look for all layers: each costs a GPU a halt
                self._recompute(values, uses, dict(zip(found, doubtful, strict=True)))
        squared = losses.new_zeros(len(losses), len(self.groups))
        for k, group in enumerate(self.groups):
            for name in group.parameters:
                if name in values:
                    squared[:, k] += values[name]
        return squared

    def _recompute(
        self,
        values: dict[str, Tensor],
        uses: Mapping[str, list[Use]],
        doubtful: Mapping[str, Tensor],
    ) -> None:
        """Replace norms that cancellation may have understated, one record at a time."""
        for name, where in doubtful.items():
            for index in where.nonzero():
                rows = [use.rows(index) for use in uses[name]]
                values[name][index] = exact_squared_norm(rows).value

    def _install(self, model: nn.Module) -> None:
        self._handles.append(model.register_forward_pre_hook(self._note_batch, with_kwargs=True))
        for site in self._sites.values():
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

    def _capture(self, site: _Site) -> Callable[..., None]:
        def hook(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            if not self._active() or not isinstance(output, Tensor) or not output.requires_grad:
                return
            a = args[0] if args else next(iter(kwargs.values()))
            # The edge, not the tensor: a later in-place change of the output cannot redirect it,
            # and the output's memory (a head's logits, say) is not kept alive.
            edge = get_gradient_edge(output)
            self._calls.append(_Call(site.name, module, site.rule, a.detach(), edge))

        return hook

    def _active(self) -> bool:
        return self._capturing and torch.is_grad_enabled()

    def _verify_uses(self, losses: Tensor, calls: Sequence[_Call]) -> None:
        """Check against the autograd graph that every use of every parameter was captured.

        A weight used outside its layer's ``forward`` (``F.linear(x, self.embedding.weight)``) is
        invisible to hooks and would be left out of norm and sum. Its edges in the graph are not.
        """
        expected = dict.fromkeys(self.parameters, 0)
        for call in calls:
            for name in self._sites[call.name].names.values():
                expected[name] += 1
        found = _uses_in_graph(losses, self.parameters)
        for name, count in expected.items():
            if found[name] != count:
                raise UnsupportedLayerError(
                    f"parameter {name!r} is used {found[name]} times in the computation of the "
                    f"losses, but {count} of these uses went through its layer's forward; expected "
                    "every use to be a call of the layer, so that it can be clipped. Freeze the "
                    "parameter (requires_grad_(False)) or call the layer instead of its weight"
                )

    def _verify_sums(self, losses: Tensor, uses: Mapping[str, list[Use]]) -> None:
        """Check once, by an ordinary backward, that the rules tell the records apart rightly.

        With random weights on the losses, the rules' weighted sums must be autograd's gradients.
        They are not where a layer computes something else than its rule says, where an input was
        changed in place after the call, where rows and losses are in different order, or where a
        use was missed.
        """
        generator = torch.Generator().manual_seed(len(self._verified))
        weights = 0.5 + torch.rand(len(losses), generator=generator, dtype=torch.float64)
        weights = weights.to(losses.device, losses.dtype)
        kept = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        (losses * weights).sum().backward(retain_graph=True)
        true = {name: parameter.grad for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.grad = kept[name]
        largest = max((float(g.norm()) for g in true.values() if g is not None), default=0.0)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                ours = torch.zeros_like(parameter)
                for use in uses.get(name, []):
                    use.add_weighted_sum(weights, ours)
                theirs = true[name] if true[name] is not None else torch.zeros_like(parameter)
                assert theirs is not None
                # A gradient that is zero but for rounding is measured against the largest one.
                allowed = 1e-3 * float(theirs.norm()) + 1e-5 * largest
                apart = float((ours - theirs).norm())
                if not apart <= allowed:
                    raise UnsupportedLayerError(
                        f"the rule for parameter {name!r} gives another gradient than autograd "
                        f"(difference {apart:.3g}, expected at most {allowed:.3g}): its layer "
                        "computes something else than its type says, its input was changed in "
                        "place, or the losses are not in the order of the input's rows"
                    )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context forward passes are not captured."""
        before, self._capturing = self._capturing, False
        try:
            yield
        finally:
            self._capturing = before

    def close(self) -> None:
        """Remove all hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._calls.clear()


def make_clipper(
    model: nn.Module,
    style: str,
    *,
    threshold: float | None = None,
    clip_function: str = "abadi",
    rules: Mapping[str, Rule] | None = None,
) -> Clipper:
    """Attach a clipper to ``model``.

    Args:
        model: any module; its parameters with ``requires_grad`` are trained, the others ignored.
            Freeze and tie before calling this.
        style: ``none``, ``flat``, ``ghost`` or ``bk``: what they leave in ``.grad`` is equal (but
            for ``none``, which does not clip), time and memory differ.
        threshold: clipping threshold ``C`` on the L2 norm of one record's gradient; needed unless
            ``style="none"``.
        clip_function: ``abadi`` or ``automatic``.
        rules: rules for further layer types, by qualified class name; they come before `RULES`.

    Returns:
        An object with ``backward(losses)`` and ``norms``.

    Raises:
        ValueError: for an unknown style or clip function, or a threshold that is missing or not
            positive.
        UnsupportedLayerError: naming every trainable parameter whose layer type has no rule.
    """
    if style not in STYLES:
        raise ValueError(f"clipping style is {style!r}; expected one of {', '.join(STYLES)}")
    if clip_function not in CLIP_FUNCTIONS:
        raise ValueError(
            f"clip function is {clip_function!r}; expected one of {', '.join(CLIP_FUNCTIONS)}"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no trainable parameter; expected at least one")
    groups: tuple[Group, ...] = ()
    if style != "none":
        low = [f"{n} ({p.dtype})" for n, p in parameters.items() if p.dtype.itemsize < 4]
        if low:
            raise UnsupportedLayerError(
                f"trainable parameters in half precision: {', '.join(low)}; expected float32 or "
                "float64, since norms and sums would be rounded by more than they may be"
            )
        if threshold is None:
            raise ValueError(f"style {style!r} needs a threshold, for instance threshold=0.1")
        groups = partitions.flat(list(parameters), threshold)
    return Clipper(
        model,
        STYLES[style],
        parameters,
        groups,
        CLIP_FUNCTIONS[clip_function],
        {**(rules or {}), **{k: v for k, v in RULES.items() if k not in (rules or {})}},
    )


def _sites(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], rules: Mapping[str, Rule]
) -> dict[str, _Site]:
    """The layers to hook, one entry per module; every trainable parameter must lie in one."""
    canonical = {id(parameter): name for name, parameter in parameters.items()}
    sites: dict[str, _Site] = {}
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
        sites[module_name] = _Site(module_name, module, rule, MappingProxyType(own))
    if unsupported:
        raise UnsupportedLayerError(
            f"no clipping rule for {len(unsupported)} trainable parameter(s): "
            f"{', '.join(unsupported)}. Layers with a rule: {rule_names(rules)}. Freeze the "
            "parameters (requires_grad_(False)) or pass rules={'module.Class': rule}"
        )
    return sites


def _check_batch(call: _Call, batch: int, g: Tensor) -> None:
    positions_only = isinstance(call.module, nn.Embedding) and call.a.dim() < 2
    if positions_only or len(call.a) != batch or len(g) != batch:
        raise UnsupportedLayerError(
            f"layer {call.name!r} ({type(call.module).__name__}) was called with an input of shape "
            f"{tuple(call.a.shape)} for {batch} losses; expected one row per record, shape "
            f"({batch}, ...). A lookup shared by the batch, such as positions, must be given as "
            "(B, T)"
        )


def _uses_in_graph(losses: Tensor, parameters: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """How often each parameter enters the computation of ``losses``: edges into its leaf node."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    counts = dict.fromkeys(parameters, 0)
    root = losses.grad_fn
    pending: list[Node] = [] if root is None else [root]
    seen: set[Node] = set(pending)
    while pending:
        for node, _ in pending.pop().next_functions:
            if node is None:
                continue
            leaf = getattr(node, "variable", None)
            name = names.get(id(leaf))
            if name is not None:
                counts[name] += 1
            elif isinstance(leaf, nn.Parameter):
                raise UnsupportedLayerError(
                    f"a parameter of shape {tuple(leaf.shape)} that requires gradients takes part "
                    "in the losses but is not the clipper's; expected all of them in the model "
                    "given to make_clipper, and frozen or not before that call"
                )
            elif node not in seen:
                seen.add(node)
                pending.append(node)
    return counts
