"""Which module's call is to be computed again for parameters that no layer rule covers.

Every running module that has trainable parameters inside is a *frame*. When it returns, the graph
between its inputs and outputs shows which parameters were used in it, and how often beyond the
captured calls: parameters of its own, weights that are read from a child, lookups that all records
share. The innermost frame whose records can be told apart takes them over (`functional`); a frame
that hands on something shared, such as a table of relative positions, leaves them to the one around
it. What was found in the first forward is remembered, and later forwards look at nothing else,
unless a layer meets rows that are not the records', or a module runs that no forward called before.

A shape does not show whether rows are of records: a table of 512 rows may meet 8 records. Where it
could be either, the model is run on fewer records for comparison, once for rows of a shape.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from dpft.privacy.clipping.calls import Between, Call, Site, uses_between
from dpft.privacy.clipping.functional import Arguments, AutomaticRule, Recomputation, close
from dpft.privacy.untouched import random_state_kept, random_states

Key = tuple[str, int]
"""A module's name, and which of its calls in a forward."""

Shapes = tuple[torch.Size, ...]


@dataclass
class Frame:
    """A module that runs, after ``start`` captured calls."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    start: int
    key: Key
    watched: bool
    versions: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    random: list[Tensor] = field(default_factory=list)

    def inputs(self) -> tuple[Arguments, list[Tensor]]:
        """Return the call's arguments, and their tensors."""
        return Arguments.of((self.args, self.kwargs))


class Taken(NamedTuple):
    """A call that covers what no layer's call does, as of `Call`; the model goes on with result."""

    site: Site
    automatic: Recomputation
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    result: Any
    stops: frozenset[tuple[Node, int]]


class _ImpossibleError(Exception):
    """A frame cannot take parameters over; the message says why."""


class Frames:
    """The running modules, and which of them take over parameters.

    ``learning`` tells whether every frame is looked at, and ``reasons`` why parameters that are
    left could not be taken over, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        unheard: Callable[[], AbstractContextManager[None]],
        originals: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.learning = True
        self.reasons: dict[str, list[str]] = {}
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self._model = model
        self._parameters = parameters
        self._unheard = unheard
        self._originals = originals
        self._stack: list[Frame] = []
        self._turns: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._taken: dict[str, dict[str, None]] = {}
        self._last: dict[str, set[Shapes]] = {}
        self._rules: dict[str, AutomaticRule] = defaultdict(AutomaticRule)
        self._batched: dict[Key, dict[Shapes, tuple[bool, ...]]] = {}
        self._others: set[Key] = set()
        self._trusted: set[tuple[Key, Shapes, bool]] = set()
        self._probed: dict[Key, tuple[int, ...]] | None = None
        self._recording: dict[Key, tuple[int, ...]] | None = None

    @property
    def recording(self) -> bool:
        """Whether the model runs for comparison only."""
        return self._recording is not None

    def begin(self, fresh: bool) -> None:
        """Note that a forward of the whole model begins; ``fresh`` unless an earlier one waits."""
        self._stack.clear()
        self._turns.clear()
        if fresh:
            self._last.clear()
        self._probed = None

    def enter(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Any, start: int
    ) -> None:
        """Note that a module begins to run, after ``start`` captured calls."""
        key = (name, self._turns[name])
        self._turns[name] += 1
        watched = False
        if self._recording is None:
            # One that no forward called before is looked at, whenever it comes.
            watched = self.learning or name in self._taken or name not in self._seen
            self._seen.add(name)
        frame = Frame(name, module, args, kwargs, start, key, watched)
        if watched:
            _, tensors = frame.inputs()
            frame.versions = {id(x): (x, x._version) for x in (*tensors, *module.buffers())}
            frame.random = random_states(tensors)
        self._stack.append(frame)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Frame | None:
        """Return the frame of a module that has returned; None if it was not seen to begin."""
        for depth in reversed(range(len(self._stack))):
            frame = self._stack[depth]
            if frame.module is module:
                del self._stack[depth:]  # what lies above it failed
                if self._recording is not None:
                    self._recording[frame.key] = _sizes(Arguments.of((args, kwargs))[1])
                return frame
        return None

    def taken_inputs(self, name: str, args: Any, kwargs: Any) -> Sequence[Tensor]:
        """Return what a recomputed call must save besides what autograd does.

        A checkpoint compares what is saved with the forward's, where another call of the module may
        not have been taken: one on a table that the records share.
        """
        if name not in self._last:
            return ()
        _, inputs = Arguments.of((args, kwargs))
        return inputs if tuple(x.shape for x in inputs) in self._last[name] else ()

    def positions(
        self, frame: Frame, args: tuple[Any, ...], kwargs: Any, records: int | None, site: Site
    ) -> int:
        """Return the rows of a layer's input for each of ``records``; 0 if they may be others'.

        In that case the frames around the layer are looked at.
        """
        x = args[0] if args else next(iter(kwargs.values()))
        if records is None or not isinstance(x, Tensor):
            return 1
        found = self._positions(frame, args, kwargs, records, site, x)
        covered = {name for taken in self._taken.values() for name in taken}
        if not found and not covered.issuperset(site.names.values()):
            self.learning = True
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
            _, tensors = Arguments.of((args, kwargs))  # of which x is the first
            return k if self._roles(frame, tensors, records)[0] else 0
        except _ImpossibleError:
            return 0

    def take(
        self,
        frame: Frame,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        calls: Sequence[Call],
        records: int | None,
    ) -> Taken | None:
        """Return what a frame takes over as it returns; None if nothing, or if it cannot."""
        if not (self.learning or frame.watched):
            return None
        frame.args, frame.kwargs = args, kwargs
        returned, tensors = Arguments.of(result)
        _, inputs = frame.inputs()
        edges = [get_gradient_edge(x) for x in inputs if x.requires_grad]
        stops = frozenset((edge.node, edge.output_nr) for edge in edges)
        found = {
            i: uses_between([get_gradient_edge(x)], stops, self.names)
            for i, x in enumerate(tensors)
            if x.requires_grad and x.is_floating_point()
        }
        inside = uses_between([get_gradient_edge(tensors[i]) for i in found], stops, self.names)
        wanted = self._wanted(inside, calls)
        if not wanted:
            return None
        picked = [i for i, uses in found.items() if uses.counts.keys() & wanted.keys()]
        local = {
            self.names[id(parameter)]: name
            for name, parameter in frame.module.named_parameters(remove_duplicate=False)
            if id(parameter) in self.names
        }
        try:
            if missing := [name for name in wanted if name not in local]:
                raise _ImpossibleError(f"uses {', '.join(missing)} of another module")
            own = {local[name]: self._parameters[name] for name in wanted}
            automatic = self._recomputation(frame, own, [(i, tensors[i]) for i in picked], records)
        except _ImpossibleError as reason:
            whose = f"{frame.name or 'the model'} ({type(frame.module).__name__})"
            for name in wanted:
                self.reasons.setdefault(name, []).append(f"{whose} {reason}")
            self.learning = True
            return None
        self._taken.setdefault(frame.name, {}).update(wanted)
        self._last.setdefault(frame.name, set()).add(tuple(x.shape for x in inputs))
        for name in wanted:
            self.reasons.pop(name, None)
        # What lies outside is not to be told apart from what an output is used for inside.
        outputs = {i: tensors[i].view_as(tensors[i]) for i in picked}
        after = returned.filled([outputs.get(i, x) for i, x in enumerate(tensors)])
        site = Site(frame.name, frame.module, automatic.rule, {local[n]: n for n in wanted})
        return Taken(site, automatic, inputs, list(outputs.values()), after, stops)

    def _wanted(self, inside: Between, calls: Sequence[Call]) -> dict[str, None]:
        """Return parameters with uses that no captured call covers; with them all of a call's."""
        covered: Counter[str] = Counter()
        reached = [c for c in calls if any(edge.node in inside.nodes for edge in c.outputs)]
        for call in reached:
            if not call.doubtful:
                covered.update(call.uses(self.names))
        wanted = dict.fromkeys(name for name, n in inside.counts.items() if n > covered[name])
        before = -1
        while before != len(wanted):
            before = len(wanted)
            for call in reached:
                names = call.site.names.values()
                if not wanted.keys().isdisjoint(names):
                    wanted |= dict.fromkeys(n for n in names if inside.counts[n])
        return wanted

    def _recomputation(
        self,
        frame: Frame,
        parameters: Mapping[str, Tensor],
        outputs: Sequence[tuple[int, Tensor]],
        records: int | None,
    ) -> Recomputation:
        """Return how to compute a frame again for one record; raises _ImpossibleError."""
        given, inputs = frame.inputs()
        if records is None:
            first = next((x for x in inputs if x.dim() > 0), None)
            if first is None:
                raise _ImpossibleError("has no input, so that the number of records is unknown")
            records = len(first)
        for x, version in frame.versions.values():
            if x._version != version:
                raise _ImpossibleError("changes its input or a buffer in place")
        for _, y in outputs:
            if y.dim() == 0 or len(y) == 0 or len(y) % records:
                raise _ImpossibleError(
                    f"gives an output of shape {tuple(y.shape)} that {records} records share"
                )
        batched = (False,) * len(inputs)
        if records > 1:
            batched = self._roles(frame, inputs, records)
            if not any(batched):
                raise _ImpossibleError("has no input with rows of the records")
        automatic = Recomputation(
            self._rules[frame.name],
            frame.module,
            parameters,
            given,
            batched,
            tuple(i for i, _ in outputs),
            tuple((y.shape, y.dtype) for _, y in outputs),
            records,
            _autocast_as_now(outputs[0][1].device.type),
            self._unheard,
        )
        self._try(frame, automatic, inputs, [y for _, y in outputs])
        return automatic

    def _try(
        self,
        frame: Frame,
        automatic: Recomputation,
        inputs: Sequence[Tensor],
        outputs: list[Tensor],
    ) -> None:
        """Compute two records alone, the first time for rows of these shapes, and compare.

        Each time where random numbers were drawn: dropout may be on in one batch and off before.
        """
        records = automatic.records
        states = random_states(inputs)
        drawn = len(states) != len(frame.random) or not all(map(torch.equal, states, frame.random))
        if frame.module.training and (why := _dropped(frame.module, drawn)):
            raise _ImpossibleError(why)
        trusted = frame.key, _row_shapes(inputs), records > 1
        if trusted in self._trusted and not drawn:
            return
        # A record that is not finite shows nothing: two others are taken.
        rows = (y.detach().reshape(records, -1).isfinite().all(1).tolist() for y in outputs)
        finite = [record for record, of_all in enumerate(zip(*rows, strict=True)) if all(of_all)]
        for record in {*finite[:1], *finite[-1:]}:
            try:
                with torch.no_grad(), random_state_kept(*inputs):
                    alone = automatic.alone(inputs, record)
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
        """Return of each input, whether its rows are of records; raises _ImpossibleError.

        Known from the first rows of these shapes: in another batch a call may be given a table
        of the model's where it was given something of the records.
        """
        sizes, shapes = _sizes(inputs), _row_shapes(inputs)
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
        if root is None or root.module is not self._model:
            return self._probed
        given, tensors = root.inputs()
        part = [x[:few].clone() if x.dim() and len(x) == records else x for x in tensors]
        args, kwargs = given.filled(part)
        stack, turns = self._stack, self._turns
        self._stack, self._turns, self._recording = [], Counter(), {}
        autocast = _autocast_as_now(next((x.device.type for x in tensors), "cpu"))
        try:
            with torch.no_grad(), autocast(), random_state_kept(*part), self._originals():
                self._model.forward(*args, **kwargs)
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


def _row_shapes(tensors: Sequence[Tensor]) -> Shapes:
    return tuple(x.shape[1:] for x in tensors)


def _dropped(module: nn.Module, drawn: bool) -> str:
    """Return what a module drops at random, by its structure: a mask may leave all by chance.

    Branches count where nothing was ``drawn``, too: a check may have switched them off.
    """
    for part in module.modules():
        kind, rate = type(part).__name__, getattr(part, "drop_prob", getattr(part, "p", 0))
        dropout = drawn and isinstance(part, nn.modules.dropout._DropoutNd)
        if rate and (dropout or "DropPath" in kind or "StochasticDepth" in kind):
            return (
                f"has dropout ({kind} at rate {rate}) and would be computed again with other "
                "masks: set it to 0, such as drop_path_rate in the model's configuration"
            )
    return ""
