"""The choice of the module whose call is computed again, for parameters without a layer rule.

Every running module that has trainable parameters inside is a *frame*. When it returns, the graph
between its inputs and outputs shows which parameters were used in it, and how often beyond the
captured calls: the module's parameters, weights that are read from a child, lookups that all
records share. The innermost frame with rows of the records takes them over (`recomputation`); a
frame that hands on something shared, such as a table of relative positions, leaves them to the one
around it. What was found in the first forward is remembered, and later forwards look at nothing
else, unless a layer meets rows that are not the records', or a module runs that no forward called
before.

A shape does not show whether rows are of records: a table of 512 rows may meet 8 records. Where it
could be either, the model is run on fewer records for comparison, once for rows of a shape. Records
may not depend on each other within a frame: two are computed alone, once for rows of a shape.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from dpft.privacy.anymodule.recomputation import (
    AutomaticRule,
    Fill,
    ModuleCall,
    close,
    tensors_of,
)
from dpft.privacy.checks import random_state_kept, random_states
from dpft.privacy.clipping.calls import Between, Call, Site, uses_between
from dpft.privacy.clipping.capture import Capture, Handler

Key = tuple[str, int]
"""A module's name, and which of its calls in a forward."""

Shapes = tuple[torch.Size, ...]


@dataclass
class Frame:
    """A module that runs, after ``start`` captured calls.

    Attributes:
        versions: the tensors that it may read, and how often each was changed before.
        random: states of the random generators before.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    start: int
    key: Key
    watched: bool
    versions: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    random: list[Tensor] = field(default_factory=list)

    def inputs(self) -> tuple[list[Tensor], Fill]:
        """Return the tensors of the call's arguments, and what puts others in their places."""
        return tensors_of((self.args, self.kwargs))


class _ImpossibleError(Exception):
    """A frame cannot take parameters over; the message says why."""


class AnyModule(Handler):
    """Handles trained parameters that no layer with a rule owns, or whose uses none covers.

    Where parameters are sharded no module can be computed again by itself: there it refuses them.
    """

    def __init__(self, capture: Capture) -> None:
        self.reasons: dict[str, list[str]] = {}
        self._capture = capture
        self._learning = True
        self._stack: list[Frame] = []
        self._turns: Counter[str] = Counter()
        self._seen: set[str] = set()  # names of modules that some forward has called
        self._taken: dict[str, set[Shapes]] = {}  # by module, the shapes in this forward
        self._rules: dict[str, AutomaticRule] = defaultdict(AutomaticRule)
        self._batched: dict[Key, dict[Shapes, tuple[bool, ...]]] = {}
        self._others: set[Key] = set()  # calls that were given rows which are not of records
        self._trusted: set[tuple[Key, Shapes, bool]] = set()  # calls that were computed alone
        self._probed: dict[Key, tuple[int, ...]] | None = None
        self._recording: dict[Key, tuple[int, ...]] | None = None
        self._covered: set[str] = set()
        if capture.sharded:
            capture.sites.refuse_bare()
            return
        # After the hooks of layers with a rule.
        for name, module in capture.model.named_modules():
            trained = any(id(p) in capture.names for p in module.parameters())
            if not trained or type(module).forward is nn.Module.forward:
                continue
            owns = any(id(p) in capture.names for p in module.parameters(recurse=False))
            enter, leave = partial(self._enter, name), partial(self._leave, name, owns)
            capture.hook(module.register_forward_pre_hook(enter, with_kwargs=True))
            capture.hook(module.register_forward_hook(leave, with_kwargs=True))

    def begin(self, nested: bool) -> None:
        if nested:
            return
        self._stack.clear()
        self._turns.clear()
        self._probed = None
        if not self._capture.calls:
            for shapes in self._taken.values():
                shapes.clear()

    def end(self) -> None:
        if self._capture.calls:
            self._learning = False

    def positions(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the rows of a layer's input for each record; 0 if they may be others'.

        In that case the frames around the layer are looked at.
        """
        records = self._capture.records()
        frame = next((f for f in reversed(self._stack) if f.module is site.module), None)
        x = args[0] if args else next(iter(kwargs.values()))
        if frame is None or records is None or not isinstance(x, Tensor):
            return 1
        found = self._positions(frame, args, kwargs, records, site, x)
        if not found:
            self._learning |= not self._covered.issuperset(site.names.values())
        return found

    def _positions(
        self, frame: Frame, args: Any, kwargs: Any, records: int, site: Site, x: Tensor
    ) -> int:
        vector = isinstance(site.module, nn.Embedding | nn.Linear) and x.dim() < 2
        if vector or x.dim() == 0:  # a lookup (T,), or one input (d,), that all records share
            return 0
        if len(x) == 0 or len(x) % records:
            self._others.add(frame.key)  # as many rows as records in another batch mean nothing
            return 0
        k = len(x) // records
        if k > 1 and not site.rule.sums_over_positions:
            return 0
        if records == 1:
            return k
        if frame.key in self._others or isinstance(x, nn.Parameter):
            return 0
        square = x.dim() > 1 and x.shape[0] == x.shape[1]
        if x.stride(0) == 0 and k == 1:  # one row for all, of which each record has its own
            return 1
        if k == 1 and not square and frame.key not in self._batched:
            return 1
        try:
            tensors, _ = tensors_of((args, kwargs))  # of which x is the first
            return k if self._roles(frame, tensors, records)[0] else 0
        except _ImpossibleError:
            return 0

    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        """Note that a module begins to run."""
        capture = self._capture
        if self._recording is None and (capture.in_backward or not capture.active):
            return
        key = (name, self._turns[name])
        self._turns[name] += 1
        watched = False
        if self._recording is None:
            watched = self._learning or name in self._taken or name not in self._seen
            self._seen.add(name)
        frame = Frame(name, module, args, kwargs, len(capture.calls), key, watched)
        if watched:
            tensors, _ = frame.inputs()
            frame.versions = {id(x): (x, x._version) for x in (*tensors, *module.buffers())}
            frame.random = random_states(tensors)
        self._stack.append(frame)

    def _leave(
        self, name: str, owns: bool, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> Any:
        """Note that a module has returned, and capture its whole call if it is to be."""
        capture = self._capture
        if self._recording is not None:
            if (frame := self._popped(module)) is not None:
                self._recording[frame.key] = _sizes(tensors_of((args, kwargs))[0])
            return None
        if not (capture.captures(name) if owns else capture.active):
            return None
        if capture.in_backward:
            # A checkpoint compares what is saved with the forward's, where another call of the
            # module may not have been taken: one on a table that the records share.
            inputs, _ = tensors_of((args, kwargs))
            if tuple(x.shape for x in inputs) in self._taken.get(name, ()):
                capture.save(*inputs)
            return None
        frame = self._popped(module)
        if frame is None or not (self._learning or frame.watched):
            return None
        frame.args, frame.kwargs = args, kwargs
        return self._take(frame, output)

    def _popped(self, module: nn.Module) -> Frame | None:
        """Return the frame of a module that has returned; None if it was not seen to begin."""
        for depth in reversed(range(len(self._stack))):
            frame = self._stack[depth]
            if frame.module is module:
                del self._stack[depth:]  # what is above it failed
                return frame
        return None

    def _take(self, frame: Frame, result: Any) -> Any:
        """Capture a frame's call for parameters that no layer's call inside it covers.

        Returns what the model is to go on with in place of ``result``; None if nothing is taken.
        """
        capture, names = self._capture, self._capture.names
        inside_calls = capture.calls[frame.start :]
        tensors, returned = tensors_of(result)
        inputs, filled = frame.inputs()
        edges = [get_gradient_edge(x) for x in inputs if x.requires_grad]
        stops = frozenset((edge.node, edge.output_nr) for edge in edges)
        found = {
            i: uses_between([get_gradient_edge(x)], stops, names)
            for i, x in enumerate(tensors)
            if x.requires_grad and x.is_floating_point()
        }
        inside = uses_between([get_gradient_edge(tensors[i]) for i in found], stops, names)
        wanted = self._wanted(inside, inside_calls)
        if not wanted:
            return None
        picked = [i for i, uses in found.items() if uses.counts.keys() & wanted.keys()]
        local = {
            names[id(parameter)]: name
            for name, parameter in frame.module.named_parameters(remove_duplicate=False)
            if id(parameter) in names
        }
        try:
            if missing := [name for name in wanted if name not in local]:
                raise _ImpossibleError(f"uses {', '.join(missing)} of another module")
            records, batched = self._split(frame, inputs, [tensors[i] for i in picked])
            # A view, so that uses of an output outside differ from its uses inside.
            outputs = {i: tensors[i].view_as(tensors[i]) for i in picked}
            rule, own = self._rules[frame.name], {local[name]: name for name in wanted}
            call = ModuleCall(
                Site(frame.name, frame.module, rule, own),
                None,
                tuple(map(get_gradient_edge, outputs.values())),
                root=True,  # unless the graph says otherwise
                parameters={k: capture.parameters[name] for k, name in own.items()},
                filled=filled,
                batched=batched,
                stops=stops,
                picked=tuple(picked),
                shapes=tuple((y.shape, y.dtype) for y in outputs.values()),
                records=records,
                precision=_autocast_as_now(tensors[picked[0]].device.type),
                paused=capture.paused,
            )
            self._try(frame, call, inputs, [tensors[i] for i in picked])
        except _ImpossibleError as reason:
            whose = f"{frame.name or 'the model'} ({type(frame.module).__name__})"
            for name in wanted:
                self.reasons.setdefault(name, []).append(f"{whose} {reason}")
            self._learning = True
            return None
        self._taken.setdefault(frame.name, set()).add(tuple(x.shape for x in inputs))
        self._covered |= wanted.keys()
        for name in wanted:
            self.reasons.pop(name, None)
        capture.calls[frame.start :] = [
            other for other in inside_calls if wanted.keys().isdisjoint(other.site.names.values())
        ]
        call.saved = capture.save(*inputs)
        capture.add(call, list(outputs.values()))
        return returned([outputs.get(i, x) for i, x in enumerate(tensors)])

    def _wanted(self, inside: Between, calls: Sequence[Call]) -> dict[str, None]:
        """Return parameters with uses that no captured call covers; with them all of a call's."""
        covered: Counter[str] = Counter()
        reached = [c for c in calls if any(edge.node in inside.nodes for edge in c.outputs)]
        for call in reached:
            if not call.doubtful:
                covered.update(call.counts(self._capture.names))
        wanted = dict.fromkeys(name for name, n in inside.counts.items() if n > covered[name])
        before = -1
        while before != len(wanted):
            before = len(wanted)
            for call in reached:
                names = call.site.names.values()
                if not wanted.keys().isdisjoint(names):
                    wanted |= dict.fromkeys(n for n in names if inside.counts[n])
        return wanted

    def _split(
        self, frame: Frame, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> tuple[int, tuple[bool, ...]]:
        """Return the number of records, and which inputs have rows of them.

        Raises _ImpossibleError where a frame cannot be computed again for one record.
        """
        records = self._capture.records()
        if records is None:
            first = next((x for x in inputs if x.dim() > 0), None)
            if first is None:
                raise _ImpossibleError("has no input, so that the number of records is unknown")
            records = len(first)
        if any(x._version != version for x, version in frame.versions.values()):
            raise _ImpossibleError("changes its input or a buffer in place")
        states = zip(random_states(inputs), frame.random, strict=False)  # none if not watched
        drawn = any(not torch.equal(now, before) for now, before in states)
        if why := _dropped(frame.module, drawn, drawn or not frame.watched):
            raise _ImpossibleError(why)
        for y in outputs:
            if y.dim() == 0 or len(y) == 0 or len(y) % records:
                raise _ImpossibleError(
                    f"gives an output of shape {tuple(y.shape)} that {records} records share"
                )
        batched = (False,) * len(inputs)
        if records > 1:
            batched = self._roles(frame, inputs, records)
            if not any(batched):
                raise _ImpossibleError("has no input with rows of the records")
        return records, batched

    def _try(
        self, frame: Frame, call: ModuleCall, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """Compute two records alone, the first time for rows of these shapes, and compare."""
        records = call.records
        trusted = frame.key, tuple(x.shape[1:] for x in inputs), records > 1
        if trusted in self._trusted:
            return
        # A record that is not finite shows nothing: two others are taken.
        rows = (y.detach().reshape(records, -1).isfinite().all(1).tolist() for y in outputs)
        finite = [record for record, of_all in enumerate(zip(*rows, strict=True)) if all(of_all)]
        for record in {*finite[:1], *finite[-1:]}:
            try:
                with torch.no_grad(), random_state_kept(*inputs):
                    alone = call.alone(inputs, record)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise _ImpossibleError(
                    f"fails on one record alone ({type(error).__name__}: {error})"
                ) from error
            for y, whole in zip(alone, outputs, strict=True):
                mine = whole.detach().unflatten(0, (records, -1))[record]
                if y.shape != mine.shape or not close(y, mine):
                    raise _ImpossibleError(
                        "gives another output for a record alone: it has dropout, or its records "
                        "depend on each other"
                    )
        if finite:
            self._trusted.add(trusted)

    def _roles(self, frame: Frame, inputs: Sequence[Tensor], records: int) -> tuple[bool, ...]:
        """Return for each input, whether its rows are of records; raises _ImpossibleError.

        Known from the first rows of these shapes: in another batch a call may be given a table
        of the model's where it was given something of the records.
        """
        sizes, shapes = _sizes(inputs), tuple(x.shape[1:] for x in inputs)
        odd = _ImpossibleError("is given rows whose number does not follow the records'")
        known = self._batched.get(frame.key, {}).get(shapes)
        if known is None:
            few = 2 if records > 2 else 1
            compared = self._probe(records, few).get(frame.key)
            if compared is None or len(compared) != len(sizes):
                known = tuple(size > 0 and size % records == 0 for size in sizes)
            else:
                scaled = [n * few == m * records for n, m in zip(sizes, compared, strict=True)]
                if any(n != m and not s for n, m, s in zip(sizes, compared, scaled, strict=True)):
                    raise odd
                known = tuple(n > 0 and s for n, s in zip(sizes, scaled, strict=True))
            self._batched.setdefault(frame.key, {})[shapes] = known
        if any(size % records for size, b in zip(sizes, known, strict=True) if b):
            raise odd
        return known

    def _probe(self, records: int, few: int) -> Mapping[Key, tuple[int, ...]]:
        """Return how many rows each call is given where the model runs on ``few`` records."""
        if self._probed is not None:
            return self._probed
        self._probed = {}
        root = self._stack[0] if self._stack else None
        if root is None or root.module is not self._capture.model:
            return self._probed
        tensors, filled = root.inputs()
        part = [x[:few].clone() if x.dim() and len(x) == records else x for x in tensors]
        args, kwargs = filled(part)
        stack, turns = self._stack, self._turns
        self._stack, self._turns, self._recording = [], Counter(), {}
        autocast = _autocast_as_now(next((x.device.type for x in tensors), "cpu"))
        try:
            with torch.no_grad(), autocast(), random_state_kept(*part), self._capture.paused():
                self._capture.model.forward(*args, **kwargs)
            self._probed = self._recording
        except torch.OutOfMemoryError:
            raise
        except Exception:
            self._probed = {}
        finally:
            self._stack, self._turns, self._recording = stack, turns, None
        return self._probed


def _autocast_as_now(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a context that has autocast as it is now, and keeps no weight that it rounds."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype, enabled, cache_enabled=False)


def _sizes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(len(x) if x.dim() else 0 for x in tensors)


def _dropped(module: nn.Module, drawn: bool, maybe: bool) -> str:
    """Return why a module's output is random; empty if it is not.

    Dropout is found by its structure, where numbers were or may have been drawn: a mask may leave
    all by chance. Branches that are dropped count in any case: a check may have switched them off.
    """
    for part in module.modules() if module.training else ():
        kind, rate = type(part).__name__, getattr(part, "drop_prob", getattr(part, "p", 0))
        dropout = maybe and isinstance(part, nn.modules.dropout._DropoutNd)
        if rate and (dropout or "DropPath" in kind or "StochasticDepth" in kind):
            return (
                f"has dropout ({kind} at rate {rate}) and would be computed again with other "
                "masks: set it to 0, such as drop_path_rate in the model's configuration"
            )
    return "draws random numbers, and would be computed again with others" if drawn else ""
