"""Capturing layer calls: inputs as autograd saves them, output gradients as they arrive.

A forward hook saves a layer's input ``a`` the way autograd saves tensors, so that activation
checkpointing and other saved-tensor hooks apply to it, and leaves a hook on the output. When a
backward reaches that output, the hook hands ``(a, g)`` to the listener, and forgets ``a``. Of a
module without a rule all inputs and outputs are captured so (`frames`).
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.module import _global_forward_hooks

from dpft.privacy.clipping.calls import Call, Captured, Site, save_inputs
from dpft.privacy.clipping.frames import Frame, Frames
from dpft.privacy.clipping.functional import Arguments, takes_rows
from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.clipping.rules.linear import BroadcastRule
from dpft.privacy.clipping.rules.registry import Change, PositionsRule, for_records

Listener = Callable[[Call, Tensor], None]


class Gate(NamedTuple):
    """A call's output through which alone the losses depend on what is before, and ``g`` there."""

    edge: GradientEdge
    g: Tensor


class Capture:
    """Hooks on every layer of ``sites``; `take` hands over the calls since the last time.

    Where parameters are ``sharded``, a layer's are put together for the time that it runs: then
    there are no calls but those of layers with a rule.

    Attributes:
        packed: whether hooks stood between autograd and what it saved, as of checkpointing. What
            one backward recomputes and does not need is then held as long as the graph is.
        reasons: why a parameter's uses beyond its layer's calls could not be captured, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[str, Site],
        parameters: Mapping[str, nn.Parameter],
        sharded: bool = False,
    ) -> None:
        self.sites = sites
        self.calls: list[Call] = []
        self.packed = False
        self._model = model
        self._listener: Listener | None = None
        self._token = torch.empty(0, requires_grad=True)
        self._batch: int | None = None
        self._depth = 0
        self._hidden: set[str] = set()
        self._spread: dict[str, None] = {}
        self._enabled = True
        self._in_backward = False
        self._handles: list[Any] = []
        self._sharded = sharded
        self._leaves: dict[str, dict[str, Tensor]] = {}
        # Modules that have rows of the records in the place of a parameter (1, ...).
        self._replaced: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._fitting: set[tuple[str, tuple[torch.Size, ...]]] = set()
        self._repeated: set[str] = set()
        self._frames = Frames(model, parameters, self.paused, self._one_row_for_all)
        self.reasons = self._frames.reasons
        if parameters:
            self._install(model)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(
            "a model cannot be copied while a clipper is attached to it: copy it before "
            "make_clipper, or after clipper.close()"
        )

    def take(self) -> Captured:
        """Return the captured calls, in order, and the names of hidden layers; forget both.

        A layer is hidden if it ran with gradients disabled in a forward that had them enabled: its
        output is a constant (a teacher's, a cache), or some `torch.autograd.Function` will run it
        again in a backward of its own, which no graph shows.
        """
        self._restore_rows()
        self._depth = 0
        self._leaves.clear()
        calls, self.calls = self.calls, []
        if calls:
            self._frames.learning = False
        hidden, self._hidden = self._hidden, set()
        return Captured(calls, hidden)

    @property
    def hooked(self) -> bool:
        """Whether others' forward hooks may change what a layer with a rule gives."""
        own = {handle.id for handle in self._handles}
        given = (key for site in self.sites.values() for key in site.module._forward_hooks)
        return bool(_global_forward_hooks) or any(key not in own for key in given)

    def sees_last(self, module: nn.Module) -> bool:
        """Whether no hook of others changes a layer's input before us, or its output after us."""
        own = {handle.id for handle in self._handles}
        return own.issuperset([*module._forward_pre_hooks, *[*module._forward_hooks][-1:]])

    def hooks(self) -> tuple[int, ...]:
        """Return which hooks the modules have: other ones may change what the layers compute."""
        return tuple(
            key
            for module in self._model.modules()
            for hooks in (
                module._forward_pre_hooks,
                module._forward_hooks,
                module._backward_pre_hooks,
                module._backward_hooks,
            )
            for key in hooks
        )

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

    def open_gate(self, losses: Tensor, call: Call) -> Gate:
        """Differentiate the losses as far as one call's output, and free the graph up to there."""
        with self.listening(None):
            (g,) = torch.autograd.grad(losses.sum(), call.outputs)
        return Gate(call.outputs[0], g)

    @contextmanager
    def listening(self, listener: Listener | None) -> Iterator[None]:
        """Around a backward: output gradients go to ``listener``, forwards are recomputations."""
        before = self._listener, self._in_backward
        self._listener, self._in_backward = listener, True
        try:
            yield
        finally:
            self._listener, self._in_backward = before

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
        self._restore_rows()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.calls.clear()

    def _install(self, model: nn.Module) -> None:
        def before(module: nn.Module, hook: Callable[..., Any]) -> None:
            self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

        before(model, self._enter)
        layers = {
            id(site.module): site
            for site in self.sites.values()
            if not isinstance(site.rule, BroadcastRule)
        }
        after: list[Callable[[], Any]] = []
        for name, module in model.named_modules():
            trained = any(id(p) in self._frames.names for p in module.parameters())
            site = layers.get(id(module))
            if trained and (change := for_records(module)):
                before(module, partial(self._of_records, name, change))
            if site is None and (
                self._sharded or not trained or type(module).forward is nn.Module.forward
            ):
                continue
            if not self._sharded:
                before(module, partial(self._begin, name))
            owns = any(id(p) in self._frames.names for p in module.parameters(recurse=False))
            end = partial(self._end, name, owns, site)
            after.append(partial(module.register_forward_hook, end, with_kwargs=True))
        for site in self.sites.values():
            module = site.module
            if isinstance(site.rule, BroadcastRule):
                before(module, partial(self._broadcast, site))
                # Before whoever shards takes the module's parameters away again.
                self._handles.append(
                    module.register_forward_hook(self._restore, always_call=True, prepend=True)
                )
                continue
            if isinstance(module, nn.Embedding):
                expand = partial(self._expand, site)
                self._handles.append(module.register_forward_pre_hook(expand))
            if self._sharded:
                note = partial(self._note_leaves, site)
                self._handles.append(module.register_forward_pre_hook(note))
        self._handles += [register() for register in after]
        self._handles.append(model.register_forward_hook(self._leave, always_call=True))

    def _enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._in_backward or not self._active():
            return
        self._restore_rows()  # an interrupt in the last forward may have left rows in place
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() > 0)
        first = next(tensors, None)
        self._batch = None if first is None else len(first)
        if not self._depth:
            self._frames.begin(fresh=not self.calls)
        self._depth += 1
        self._spread.clear()

    def _leave(self, model: nn.Module, args: Any, output: Any) -> None:
        if self._in_backward or not self._active():
            return
        self._depth = max(0, self._depth - 1)
        error = sys.exc_info()[1]
        if error is not None and self._spread:
            error.add_note(
                f"dpft: {', '.join(self._spread)}, which the records of a batch share, has a row "
                "for each record while gradients are clipped; a model that repeats, reshapes or "
                "sizes by that one row fails so: freeze it (requires_grad_(False)), or give "
                "lookups of shape (B, T)"
            )

    def _records(self) -> int | None:
        """Return the records of the model's forward that runs, or is recomputed; None outside.

        A part of the model that is called by itself has a batch of its own, of unknown size.
        """
        return self._batch if self._depth or self._in_backward else None

    def _expand(self, site: Site, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Give a lookup shared by the batch (positions of shape (1, T)) one row per record."""
        batch = self._records()
        if self._active() and args and batch is not None:
            ids = args[0]
            if isinstance(ids, Tensor) and ids.dim() > 1 and len(ids) == 1 < batch:
                self._spread[site.name] = None
                return (ids.expand(batch, *ids.shape[1:]), *args[1:])
        return None

    def _of_records(
        self, name: str, change: Change, module: nn.Module, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Give a lookup shared by the batch one row per record, where a module knows how."""
        if not self._active():
            return None
        self._spread[name] = None
        first = args[0] if args else next(iter(kwargs.values()))
        return change(module, args, kwargs, self._records() or len(first))

    def _note_leaves(self, site: Site, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before the forward: when the hooks after it run, the whole parameters may be gone."""
        whole = {name: module._parameters[local] for local, name in site.names.items()}
        self._leaves[site.name] = {n: leaf for n, leaf in whole.items() if leaf is not None}

    def _begin(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        if self._frames.recording or (self._active() and not self._in_backward):
            self._frames.enter(name, module, args, kwargs, len(self.calls))

    def _end(
        self,
        name: str,
        owns: bool,
        site: Site | None,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        """After the forward of a layer with a rule, of a module around such layers, or of both."""
        if torch.compiler.is_compiling():
            raise UnsupportedLayerError(
                f"{name or 'the model'} is compiled by torch.compile, where no hook of a layer "
                "runs; expected the module itself"
            )
        if self._frames.recording:
            self._frames.leave(module, args, kwargs)
            return None
        if not (self._captures(name) if owns else self._active()):
            return None
        frame = None if self._in_backward else self._frames.leave(module, args, kwargs)
        spread = None
        if site is not None and isinstance(output, Tensor) and output.requires_grad:
            output = spread = self._add_layer(site, frame, args, kwargs, output)
        if self._in_backward:
            save_inputs(self._token, *self._frames.taken_inputs(name, args, kwargs))
        taken = None if frame is None else self._take(frame, args, kwargs, output)
        return spread if taken is None else taken

    def _add_layer(
        self,
        site: Site,
        frame: Frame | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Tensor,
    ) -> Tensor:
        """Keep the call of a layer with a rule; returns its output, with a row for each record."""
        a = args[0] if args else next(iter(kwargs.values()))
        if isinstance(site.rule, PositionsRule):
            output = output.expand(len(a), *output.shape[1:])
        saved = save_inputs(self._token, a) if site.rule.needs_input(site.module) else None
        positions = 1
        if frame is not None:
            positions = self._frames.positions(frame, args, kwargs, self._records(), site)
        self._add(
            [output],
            site,
            saved,
            root=not a.requires_grad or a.is_leaf,
            leaves=self._leaves.get(site.name, {}),
            positions=positions or 1,
            doubtful=not positions,
        )
        return output

    def _take(
        self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Capture a whole call for parameters that no layer's call inside it covers."""
        inside = self.calls[frame.start :]
        taken = self._frames.take(frame, args, kwargs, output, inside, self._records())
        if taken is None:
            return None
        names = set(taken.site.names.values())
        self.calls[frame.start :] = [
            call for call in inside if names.isdisjoint(call.site.names.values())
        ]
        self._add(
            taken.outputs,
            taken.site,
            save_inputs(self._token, *taken.inputs),
            root=True,  # unless the graph says otherwise
            automatic=taken.automatic,
            stops=taken.stops,
        )
        return taken.result

    def _broadcast(
        self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Before the forward: each record gets a row of its own of the broadcast parameter."""
        ((local, name),) = site.names.items()
        if not self._captures(site.name) or site.name in self._repeated:
            return
        batch = self._records()
        if batch is None:
            raise UnsupportedLayerError(
                f"{site.name or 'the model'} ({type(module).__name__}) has parameters of its own, "
                "but the number of records is unknown: the model was called without a tensor, or "
                "a part of it by itself; expected the inputs as the model's arguments, one row per "
                "record"
            )
        if batch > 1:
            self._spread[site.name] = None
        parameter = module._parameters[local]
        assert parameter is not None
        rows = parameter.expand(batch, *parameter.shape[1:])
        if self._fits(site, local, rows, args, kwargs):
            self._replaced.append((module, local, parameter))
            module._parameters[local] = rows  # type: ignore[assignment]
            leaves = {name: parameter} if self._sharded else {}
            self._add([rows], site, None, root=True, leaves=leaves)

    def _fits(
        self, site: Site, local: str, rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Return whether a module takes rows, tried for inputs of every new shape.

        Not where parameters are sharded: there its forward cannot run by itself.
        """
        if len(rows) == 1 or self._sharded:
            return True
        _, tensors = Arguments.of((args, kwargs))
        call = site.name, tuple(x.shape[1:] for x in tensors)
        if call in self._fitting:
            return True
        with self.paused():
            fits = takes_rows(site.module, local, rows, args, kwargs)
        if fits:
            self._fitting.add(call)
        else:
            self._repeated.add(site.name)
            self._frames.learning = True
        return fits

    def _restore(self, module: nn.Module, args: Any, output: Any) -> None:
        """After the forward, also one that failed; not after a trial's."""
        if self._enabled:
            self._restore_rows(module)

    def _restore_rows(self, module: nn.Module | None = None) -> None:
        """Give a module, or all of them, their parameters back."""
        for owner, local, parameter in self._replaced:
            if module is None or owner is module:
                owner._parameters[local] = parameter
        self._replaced = [x for x in self._replaced if module is not None and x[0] is not module]

    @contextmanager
    def _one_row_for_all(self) -> Iterator[None]:
        """Within this context no module has rows in place of a parameter; nothing is captured."""
        rows = [(module, local, module._parameters[local]) for module, local, _ in self._replaced]
        for module, local, parameter in self._replaced:
            module._parameters[local] = parameter
        try:
            with self.paused():
                yield
        finally:
            for module, local, row in rows:
                module._parameters[local] = row

    def _add(
        self, outputs: Sequence[Tensor], site: Site, saved: Tensor | None, **about: Any
    ) -> None:
        """Keep a call; ``about`` as of `Call`."""
        if self._in_backward:  # a recomputation: only what it saves is wanted
            return
        # The edge and the hook hold on to the place in the graph, not to the tensor: a later
        # in-place change cannot redirect them, and the output (a head's logits) is not kept alive.
        self.packed |= torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        call = Call(site, saved, tuple(map(get_gradient_edge, outputs)), **about)
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

    def _captures(self, name: str) -> bool:
        """Return whether a layer's call is captured; note one that ran with gradients disabled."""
        if self._enabled and self._depth and not self._in_backward and not torch.is_grad_enabled():
            self._hidden.add(name)
        return self._active()

    def _active(self) -> bool:
        return self._enabled and torch.is_grad_enabled()
