"""The private step of one microbatch as one program: traced once for a shape, then replayed.

The clipper's own algorithm runs on tensors without data (fake tensors), and what it does is noted
as a graph of tensor operations: forward, losses, backward, norms, clip factors and clipped sums. No
control flow can depend on data there: an operation that reads a number is an error. The graph is
compiled by inductor, and on a GPU captured as a CUDA graph, so that nothing in Python runs for each
layer. Parameters, thresholds and weights of records are inputs; shapes are constants.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor, fx

from dpft.privacy.checks import random_state_kept
from dpft.privacy.clipping import Clipper
from dpft.privacy.clipping.clipper import Sums
from dpft.privacy.precision import on_device

Backend = Literal["inductor", "graph"]
"""What runs a program: compiled code, or the operations of the graph one by one (for tests)."""

_MOST_LAYERS = 32  # in one launch of the norm kernel, each of which compares its layer's number
_WARM_UPS = 3  # before a CUDA graph is captured: libraries allocate their workspaces


class UntraceableError(RuntimeError):
    """A step cannot be written as one program. The message names the operation."""


class Program:
    """The step of all microbatches with one shape.

    Args:
        clipper: attached to the model in its training mode. A microbatch of this shape has gone
            through its `backward`, which checks what no trace can. Where its plan is ``none`` the
            sums are those of autograd.
        losses: computes one loss per unit, ``(B,)``, from the tensors of a microbatch.
        tensors: of a microbatch of this shape, on the model's device.
        weights: of the units' clipped gradients, ``(B,)`` on that device, or None: see
            `Clipper.backward`.
        rows: rows of the model's batch for each unit.
        backend: what runs the program.

    Raises:
        UntraceableError: the step reads a number, or the compiler failed.
    """

    def __init__(
        self,
        clipper: Clipper,
        losses: Callable[[Sequence[Tensor]], Tensor],
        tensors: Sequence[Tensor],
        weights: Tensor | None,
        rows: int,
        backend: Backend = "inductor",
    ) -> None:
        self._clipper = clipper
        self._losses = losses
        self._rows = rows
        self._given = weights is not None
        self._device = next(iter(clipper.parameters.values())).device
        inputs = self._inputs(tensors, weights)
        try:
            # Compiling runs the step, whose masks of dropout are to be drawn again.
            with random_state_kept(*clipper.parameters.values()), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler, about torch's own code
                graph = self._traced(inputs)
                share_launches(graph.graph)
                self._run = self._compiled(graph, _lift(graph), inputs, backend)
        except Exception as error:  # whatever the model, torch or a compiler raises
            first = str(error).strip().partition("\n")[0][:200]
            raise UntraceableError(f"{type(error).__name__}: {first}") from error

    def __call__(self, tensors: Sequence[Tensor], weights: Tensor | None) -> Sums:
        """Run the step. The next call may overwrite the sums, and nothing else."""
        with torch.no_grad():
            losses, norms, factors, finite, *sums = self._run(self._inputs(tensors, weights))
        return Sums(losses, norms, factors, finite, sums)

    def _inputs(self, tensors: Sequence[Tensor], weights: Tensor | None) -> list[Tensor]:
        thresholds = torch.tensor(self._clipper.thresholds, dtype=torch.float64)
        inputs = [*tensors, on_device(thresholds, self._device)]
        return inputs if weights is None else [*inputs, weights]

    def _step(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        tensors, weights = list(inputs), None
        if self._given:
            weights = tensors.pop()
        thresholds = tensors.pop()
        losses = self._losses(tensors)
        found = self._clipper.sums(losses, thresholds.unbind(), rows=self._rows, weights=weights)
        return tuple(x.detach() for x in (*found[:4], *found.sums))

    def _traced(self, inputs: Sequence[Tensor]) -> fx.GraphModule:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with ExitStack() as stack:
            # A backward in other threads would not see that it is traced.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            # Autocast would keep a rounded weight that has no data.
            stack.callback(torch.clear_autocast_cache)
            fake = [mode.from_tensor(x) for x in inputs]
            stack.enter_context(mode)
            trace = make_fx(self._step, tracing_mode="fake", _allow_non_fake_inputs=True)
            graph: fx.GraphModule = trace(*fake)
        return graph

    def _compiled(
        self,
        graph: fx.GraphModule,
        weights: Sequence[Tensor],
        inputs: list[Tensor],
        backend: Backend,
    ) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        if backend == "graph":
            return lambda inputs: graph(*weights, *inputs)
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        options: dict[str, Any] = {
            # The masks of dropout are those of the eager step.
            "fallback_random": True,
            # What is rounded to bfloat16 there is rounded here, in both norms and sums.
            "emulate_precision_casts": True,
            # On a CPU even the calls of kernels are compiled; a CUDA graph needs none.
            "cpp_wrapper": self._device.type == "cpu",
        }
        # Without a context of this kind inductor keeps no code for later runs.
        fake = FakeTensorMode(shape_env=ShapeEnv(assume_static_by_default=True))
        with torch.no_grad(), config.patch(options), tracing(TracingContext(fake)):
            compiled: Any = compile_fx(graph, [*weights, *inputs])
        with torch.no_grad():
            compiled(*weights, *inputs)  # a failure of its first call is the compiler's too
        if self._device.type == "cuda":
            return _Replayed(lambda inputs: compiled(*weights, *inputs), inputs)
        return lambda inputs: compiled(*weights, *inputs)


class _Replayed:
    """A function of tensors as a CUDA graph: the host issues one command for all kernels."""

    pool: Any = None  # of memory, which all graphs share, since one runs at a time

    def __init__(
        self, run: Callable[[list[Tensor]], Sequence[Tensor]], inputs: Sequence[Tensor]
    ) -> None:
        self._inputs = [x.clone() for x in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                run(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        _Replayed.pool = _Replayed.pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(self._graph, pool=_Replayed.pool):
            self._outputs = run(self._inputs)

    def __call__(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        torch._foreach_copy_(self._inputs, inputs)
        self._graph.replay()
        kept = [x.clone() for x in self._outputs[:4]]  # the sums are added up before the next call
        return [*kept, *self._outputs[4:]]


def share_launches(graph: fx.Graph) -> None:
    """Have one launch of the norm kernel for all layers whose tensors have one shape.

    It is placed where the last of them called the kernel. A layer takes part only if its ``a`` and
    ``g`` are needed after that anyway: so it is in flat clipping, whose sums wait for all norms.
    Where groups are clipped one after the other, their tensors are not kept for a launch.
    """
    groups: dict[Any, list[fx.Node]] = {}
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in place:
        if str(node.target) == "dpft.gram_sums.default":
            values = [x.meta["val"] for x in node.all_input_nodes]
            shapes = tuple((x.shape, x.dtype, x.device) for x in values)
            groups.setdefault(shapes, []).append(node)
    for calls in groups.values():
        last = place[calls[-1]]
        kept = [
            call
            for call in calls
            if all(any(place[user] > last for user in x.users) for x in call.all_input_nodes[:2])
        ]
        for start in range(0, len(kept), _MOST_LAYERS):
            _share_launch(graph, kept[start : start + _MOST_LAYERS])


def _share_launch(graph: fx.Graph, calls: Sequence[fx.Node]) -> None:
    """Replace calls of the norm kernel by one where the last is, and move behind it what uses them.

    Nothing between them writes to tensors of others: norms are new tensors, and ``a`` and ``g`` are
    needed as they are.
    """
    last, behind = calls[-1], dict.fromkeys(calls)
    node = calls[0]
    while node is not last:
        if any(x in behind for x in node.all_input_nodes):
            behind[node] = None
        node = node.next
    arguments: Any = [call.args for call in calls]  # each has lists of a single tensor, or of none
    with graph.inserting_after(last):
        lists = [[x for part in parts for x in part] for parts in zip(*arguments, strict=True)]
        shared = graph.call_function(torch.ops.dpft.gram_sums.default, tuple(lists))
    for node in reversed([node for node in behind if node not in calls]):
        shared.append(node)
    for index, call in enumerate(calls):
        with graph.inserting_after(shared):
            sums = graph.call_function(torch.ops.aten.slice.Tensor, (shared, 0, index, index + 1))
        call.replace_all_uses_with(sums)
        graph.erase_node(call)


def _lift(graph: fx.GraphModule) -> list[Tensor]:
    """Make the tensors that a graph holds its first inputs; return them in order."""
    found: dict[str, tuple[fx.Node, Tensor]] = {}
    first = next(iter(graph.graph.nodes))
    for node in graph.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        if name not in found:
            with graph.graph.inserting_before(first):
                placeholder = graph.graph.placeholder(f"held_{name}")
            placeholder.meta = dict(node.meta)
            found[name] = placeholder, getattr(graph, name).detach()
        node.replace_all_uses_with(found[name][0])
        graph.graph.erase_node(node)
    graph.recompile()
    return [tensor for _, tensor in found.values()]
