"""Capturing layer calls: inputs as autograd saves them, output gradients as they arrive.

A forward hook saves a layer's input ``a`` the way autograd saves tensors, so that activation
checkpointing and other saved-tensor hooks apply to it, and leaves a hook on the output. When a
backward reaches that output, the hook hands ``(a, g)`` to the listener, and forgets ``a``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import _global_forward_hooks

from dpft.privacy.clipping.calls import Call, Captured, Site, Sites, save_inputs
from dpft.privacy.clipping.rules import Change, UnsupportedLayerError

Listener = Callable[[Call, Tensor], None]


class Gate(NamedTuple):
    """A call's output through which alone the losses depend on what is before, and ``g`` there."""

    edge: GradientEdge
    g: Tensor


class Handler:
    """Handles trained parameters that no layer with a rule owns. This one refuses them.

    Attributes:
        reasons: why uses of a parameter could not be captured, by its name.
    """

    reasons: Mapping[str, Sequence[str]] = {}

    def __init__(self, capture: Capture) -> None:
        capture.sites.refuse_bare()

    def begin(self, nested: bool) -> None:
        """Note that a forward of the whole model begins; ``nested`` in another one."""

    def end(self) -> None:
        """Note that the captured calls are handed over, or that the hooks go."""

    def positions(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the rows of a layer's input for each row of the model's batch; 0: others' rows."""
        return 1


class Capture:
    """Hooks on every layer of ``sites``; `take` hands over the calls since the last time.

    Where parameters are ``sharded``, a layer's are put together for the time that it runs: then
    there are no calls but those of layers with a rule.

    Attributes:
        model: the module that gives losses.
        names: the trained parameters' names by id.
        calls: those captured since the last `take`.
        handler: handles parameters of other modules.
        packed: whether hooks packed what autograd saved, as of checkpointing. What
            one backward recomputes and does not need is then held as long as the graph is.
        in_backward: whether a backward runs, in which a forward is a recomputation.
        enabled: whether forward passes are captured where gradients are.
        batch: the rows of the model's first input in its last forward; None if it had none.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        parameters: Mapping[str, nn.Parameter],
        sharded: bool = False,
        handler: Callable[[Capture], Handler] = Handler,
    ) -> None:
        self.model = model
        self.sites = sites
        self.parameters = parameters
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.sharded = sharded
        self.calls: list[Call] = []
        self.packed = False
        self.in_backward = False
        self._listener: Listener | None = None
        self._token = torch.empty(0, requires_grad=True)
        self.batch: int | None = None
        self._depth = 0
        self._hidden: set[str] = set()
        self.enabled = True
        self._handles: list[Any] = []
        self._leaves: dict[str, dict[str, Tensor]] = {}
        if parameters:
            self._install(model)
        self.handler = handler(self)
        if parameters:
            self.hook(model.register_forward_hook(self._leave, always_call=True))

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(
            "a model cannot be copied while a clipper is attached to it: copy it before "
            "make_clipper, or after clipper.close()"
        )

    def take(self) -> Captured:
        """Return the captured calls, in order, and the names of hidden layers; forget both.

        A layer is hidden if it ran with gradients disabled in a forward that had them enabled: its
        output is a constant (a teacher's, a cache), or some `torch.autograd.Function` will run it
        again in a separate backward, which no graph shows.
        """
        self.handler.end()
        self._depth = 0
        self._leaves.clear()
        calls, self.calls = self.calls, []
        hidden, self._hidden = self._hidden, set()
        return Captured(calls, hidden)

    @property
    def hooked(self) -> bool:
        """True if other forward hooks may change what a layer with a rule gives."""
        own = {handle.id for handle in self._handles}
        given = (key for site in self.sites.layers.values() for key in site.module._forward_hooks)
        return bool(_global_forward_hooks) or any(key not in own for key in given)

    def sees_last(self, module: nn.Module) -> bool:
        """Return whether no other hook changes a layer's input before us or its output after us."""
        own = {handle.id for handle in self._handles}
        return own.issuperset([*module._forward_pre_hooks, *[*module._forward_hooks][-1:]])

    def backward(
        self,
        losses: Tensor,
        calls: Sequence[Call],
        listener: Listener,
        *,
        other_leaves: Sequence[Tensor] = (),
        retain_graph: bool = False,
        gate: Gate | None = None,
        inputs: Sequence[Tensor] = (),
    ) -> Sequence[Tensor | None]:
        """Report each call's output gradient to ``listener`` as soon as it is complete.

        No weight gradient is formed. Returns the gradients of ``inputs``, where the losses depend
        on them.
        """
        wanted = [call.outputs[i] for call in calls if call.root for i in sorted(call.awaited)]
        targets: list[Any] = [*wanted, *other_leaves]
        starts, gradients = ([losses.sum()], None) if gate is None else ([gate.edge], [gate.g])
        with self.listening(listener):
            found = torch.autograd.grad(
                starts,
                [*targets, *inputs],
                gradients,
                retain_graph=retain_graph,
                allow_unused=True,
            )
        return found[len(targets) :]

    @contextmanager
    def listening(self, listener: Listener | None) -> Iterator[None]:
        """Around a backward: output gradients go to ``listener``, forwards are recomputations."""
        before = self._listener, self.in_backward
        self._listener, self.in_backward = listener, True
        try:
            yield
        finally:
            self._listener, self.in_backward = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context forward passes are not captured."""
        before, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = before

    def close(self) -> None:
        """Remove all hooks from the model."""
        self.handler.end()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.calls.clear()

    def hook(self, handle: Any) -> None:
        """Keep the handle of a hook that `close` is to remove."""
        self._handles.append(handle)

    @property
    def active(self) -> bool:
        """True while forward passes are captured."""
        return self.enabled and torch.is_grad_enabled()

    def captures(self, name: str) -> bool:
        """Return whether a layer's call is captured; note one that ran with gradients disabled."""
        if torch.compiler.is_compiling():
            raise UnsupportedLayerError(
                f"{name or 'the model'} is compiled by torch.compile, where no hook of a layer "
                "runs; expected the module itself"
            )
        if self.enabled and self._depth and not self.in_backward and not torch.is_grad_enabled():
            self._hidden.add(name)
        return self.active

    def records(self) -> int | None:
        """Return the records of the model's forward that runs, or is recomputed; None outside.

        A part of the model that is called by itself has another batch, of unknown size.
        """
        return self.batch if self._depth or self.in_backward else None

    def save(self, *tensors: Tensor) -> Tensor:
        """Have autograd save a call's inputs, also where they are recomputed."""
        return save_inputs(self._token, *tensors)

    def add(self, call: Call, outputs: Sequence[Tensor]) -> None:
        """Keep a call with these outputs."""
        # Edge and hook hold on to the place in the graph, not to the tensor: a later in-place
        # change cannot redirect them, and the output (a head's logits) is not kept alive.
        self.packed |= torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        self.calls.append(call)
        # A strong reference would close a cycle through the graph that no collector can see.
        known = weakref.ref(call)

        def report(number: int, g: Tensor) -> None:
            call = known()
            if self._listener is not None and call is not None:
                whole = call.receive(number, g)
                if whole is not None:
                    self._listener(call, whole)

        for number, output in enumerate(outputs):
            output.register_hook(partial(report, number))

    def _install(self, model: nn.Module) -> None:
        def before(module: nn.Module, hook: Callable[..., Any]) -> None:
            self.hook(module.register_forward_pre_hook(hook, with_kwargs=True))

        before(model, self._enter)
        for module in model.modules():
            trained = any(id(p) in self.names for p in module.parameters())
            if trained and (change := self.sites.rules.for_records(module)):
                before(module, partial(self._of_records, change))
        for site in self.sites.layers.values():
            if isinstance(site.module, nn.Embedding):
                before(site.module, partial(self._expand, site))
            if self.sharded:
                before(site.module, partial(self._note_leaves, site))
            end = partial(self._add_layer, site)
            self.hook(site.module.register_forward_hook(end, with_kwargs=True))

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.in_backward or not self.active:
            return
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() > 0)
        first = next(tensors, None)
        self.batch = None if first is None else len(first)
        self.handler.begin(nested=self._depth > 0)
        self._depth += 1

    def _leave(self, model: nn.Module, args: Any, output: Any) -> None:
        if self.in_backward or not self.active:
            return
        self._depth = max(0, self._depth - 1)

    def _expand(
        self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Give a lookup shared by the batch (positions of shape (1, T)) one row per record."""
        batch = self.records()
        if self.active and args and batch is not None:
            ids = args[0]
            if isinstance(ids, Tensor) and ids.dim() > 1 and len(ids) == 1 < batch:
                return (ids.expand(batch, *ids.shape[1:]), *args[1:]), kwargs
        return None

    def _of_records(
        self, change: Change, module: nn.Module, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Give a lookup shared by the batch one row per record, where a module knows how."""
        if not self.active:
            return None
        first = args[0] if args else next(iter(kwargs.values()))
        return change(module, args, kwargs, self.records() or len(first))

    def _note_leaves(self, site: Site, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before the forward: when the hooks after it run, the whole parameters may be gone."""
        whole = {name: module._parameters[local] for local, name in site.names.items()}
        self._leaves[site.name] = {n: leaf for n, leaf in whole.items() if leaf is not None}

    def _add_layer(
        self,
        site: Site,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> Tensor | None:
        """Keep the call of a layer; returns its output, with a row for each record."""
        if not (self.captures(site.name) and isinstance(result, Tensor) and result.requires_grad):
            return None
        output: Tensor = result
        a = args[0] if args else next(iter(kwargs.values()))
        if site.rule.one_row_for_all:
            output = output.expand(len(a), *output.shape[1:])
        saved = self.save(a) if site.rule.needs_input(module) else None
        if self.in_backward:  # a recomputation: only what it saves is wanted
            return output
        positions = self.handler.positions(site, args, kwargs)
        call = Call(
            site,
            saved,
            (get_gradient_edge(output),),
            root=not a.requires_grad or a.is_leaf,
            leaves=self._leaves.get(site.name, {}),
            positions=positions or 1,
            doubtful=not positions,
        )
        self.add(call, [output])
        return output
