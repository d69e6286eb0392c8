"""Blocks of a model, each compiled into one function that still tells every layer's ``(a, g)``.

What `torch.compile` makes of a block is one function to autograd: its layers cannot be seen in the
graph, and hooks inside it cannot listen. So a compiled block is given one more input and returns
one more output for each layer with a rule. The output is the layer's ``a``. The input, a *token* of
the shape of the layer's output, takes no part in the forward; its gradient is the layer's ``g``.

Trained parameters are constants of the compiled function, so that its backward forms no weight
gradient. In batches that the clipper will check they are variables (a second function, of the same
source), and autograd's gradients of the compiled block are what the rules are compared with.

Before a block is compiled for inputs of some shapes, it runs once as it is, on its own: the graph
then tells whether every use of its parameters is the call of a layer with a rule, and whether
records keep their places. What is found there holds for the compiled function: `torch.compile` with
``fullgraph=True`` refuses control flow that depends on data, and compiles again where a shape, a
setting of a module or what is heard of it changes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch
from torch.autograd import set_multithreading_enabled
from torch.autograd.graph import get_gradient_edge

from dpft.privacy.clipping.calls import Call
from dpft.privacy.clipping.checks.layout import declare_rows_kept, follows_from_shapes
from dpft.privacy.clipping.checks.structure import verify_uses
from dpft.privacy.clipping.graph import output_metadata, uses_between
from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.clipping.rules.automatic import Arguments
from dpft.privacy.clipping.rules.broadcast import BroadcastRule
from dpft.privacy.clipping.taps import OPEN
from dpft.privacy.clipping.trials import random_state_kept

if TYPE_CHECKING:
    from dpft.privacy.clipping.capture import Capture
    from dpft.privacy.clipping.sites import Site


def _run(
    block: nn.Module,
    heard: str,
    tokens: Sequence[Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, list[Tensor]]:
    """A block's forward: what it returns, and the inputs of its layers. This is compiled.

    `torch.compile` uses a function again for any block that is alike but for hooks; ``heard`` tells
    it which layers are heard.
    """
    assert heard is not None  # what nobody looks at is not compared
    inputs: list[Tensor] = []
    OPEN.append((tokens, inputs))
    result = type(block).forward(block, *args, **kwargs)
    OPEN.pop()
    return result, inputs


class _Trial(NamedTuple):
    """What a block did when it ran as it is.

    Attributes:
        sites: its layers, in the order of their calls.
        positions: of each call, as in `Call`.
        outputs: of each call, its shape and dtype.
        keeps_rows: whether records keep their places, whatever the data.
        heard: which of its layers are heard, and what hooks there are.
    """

    sites: Sequence[Site]
    positions: Sequence[int]
    outputs: Sequence[tuple[torch.Size, torch.dtype]]
    keeps_rows: bool
    heard: str


class CompiledBlocks:
    """Compiled blocks of a model whose layers' calls are captured.

    Args:
        capture: of the layers' calls.
        blocks: by name.
        parameters: the model's trained parameters by name.
        backend: of `torch.compile`.
        captured: whether anybody asks for the layers' calls.

    Attributes:
        variables: whether trained parameters are variables of the compiled functions in the
            forward that runs, so that autograd's gradients can be asked for.

    Raises:
        UnsupportedLayerError: naming a block that cannot be compiled, or if there is none.
    """

    def __init__(
        self,
        capture: Capture,
        blocks: Mapping[str, nn.Module],
        parameters: Mapping[str, nn.Parameter],
        backend: str,
        captured: bool,
    ) -> None:
        self._captured = captured
        self.variables = True
        self._capture = capture
        self._parameters = parameters
        self._blocks = dict(blocks)
        self._trials: dict[Any, _Trial] = {}
        self._compiled = torch.compile(_run, fullgraph=True, backend=backend)
        if not blocks:
            raise UnsupportedLayerError(
                "the model has no blocks to compile; expected an nn.ModuleList or nn.Sequential "
                "of like modules: leave out compile"
            )
        inside = [(name, m) for name, block in blocks.items() for m in block.modules()]
        for site in capture.sites.values():
            for name, module in inside:
                if module is site.module and (
                    isinstance(site.rule, BroadcastRule) or isinstance(module, nn.Embedding)
                ):
                    raise _refusal(
                        name,
                        blocks[name],
                        f"has a table of its own ({site.name}), which is trained",
                    )
        for name, block in blocks.items():
            if "forward" in vars(block):
                raise _refusal(name, block, "has a forward that is not its class's")
            # Of its class, whose signature callers may look at.
            forward = functools.partial(self._forward, name, block)
            block.forward = functools.update_wrapper(forward, type(block).forward)

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around every backward through the blocks: a graph may be gone through several times.

        Settings of torch hold for one thread, so that the backward must not be given to others.
        """
        with functorch.patch(donated_buffer=False), set_multithreading_enabled(False):
            yield

    def close(self) -> None:
        """Give the blocks their own forward again."""
        for block in self._blocks.values():
            vars(block).pop("forward", None)

    def _forward(self, name: str, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What runs in place of a block's forward."""
        if not self._captured and torch.is_grad_enabled():
            return self._called(block, _hooks(block), [], args, kwargs)[0]
        records = self._capture.compiled_runs()
        if records is None:
            return type(block).forward(block, *args, **kwargs)
        trial = self._trial(name, block, args, kwargs, records)
        _, tensors = Arguments.of((args, kwargs))
        result, tokens, inputs = self._call(name, block, trial, args, kwargs, self.variables)
        if trial.keeps_rows:
            _declare(result, tensors)
        shown: set[str] = set()
        for site, token, a, positions in zip(
            trial.sites, tokens, inputs, trial.positions, strict=True
        ):
            # To autograd the block uses each of its variables once.
            names = set(site.names.values()) - shown if self.variables else set()
            shown |= names
            self._capture.add_compiled(
                site, a, token, positions=positions, shown=names, constant=not self.variables
            )
        return result

    def _call(
        self,
        name: str,
        block: nn.Module,
        trial: _Trial,
        args: Any,
        kwargs: Any,
        variables: bool,
    ) -> tuple[Any, list[Tensor], list[Tensor]]:
        """What the compiled block returns, its tokens, and the inputs of its layers."""
        device = Arguments.of((args, kwargs))[1][0].device
        tokens = [self._capture.token(shape, dtype, device) for shape, dtype in trial.outputs]
        constants = [p for p in block.parameters() if p.requires_grad and not variables]
        try:
            for parameter in constants:
                parameter.requires_grad_(False)
            result, inputs = self._called(block, trial.heard, tokens, args, kwargs)
        except TorchDynamoException as error:
            what = " ".join(str(error).strip().splitlines()[:2])
            raise _refusal(name, block, f"cannot be traced ({what})") from error
        finally:
            for parameter in constants:
                parameter.requires_grad_(True)
        if len(inputs) != len(tokens):
            raise _refusal(name, block, f"called {len(inputs)} layers, after {len(tokens)} before")
        return result, tokens, inputs

    def _called(
        self, block: nn.Module, heard: str, tokens: Sequence[Tensor], args: Any, kwargs: Any
    ) -> tuple[Any, list[Tensor]]:
        # Kinds of blocks, shapes and what the first block is given make more functions than torch
        # expects of one piece of code.
        with functorch.patch(donated_buffer=False), dynamo.patch(recompile_limit=64):
            found: tuple[Any, list[Tensor]] = self._compiled(block, heard, tokens, args, kwargs)
        return found

    def _trial(self, name: str, block: nn.Module, args: Any, kwargs: Any, records: int) -> _Trial:
        """What the block does with arguments of these shapes; it runs where that is not known."""
        given, tensors = Arguments.of((args, kwargs))
        for leaf in given.leaves:
            if not (leaf is None or isinstance(leaf, bool | int | float | str)):
                raise _refusal(
                    name,
                    block,
                    f"is given a {type(leaf).__name__}: of a cache, call the model with "
                    "use_cache=False",
                )
        shapes = tuple((x.shape, x.dtype) for x in tensors)
        key = (name, given.leaves, given.spec, shapes, records, block.training)
        if key not in self._trials:
            apart = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
            part_args, part_kwargs = given.filled(apart)
            with random_state_kept(*apart), self._capture.apart() as calls:
                result = type(block).forward(block, *part_args, **part_kwargs)
                trial = self._judged(name, block, calls, result, records)
                # Both functions now, and their backwards: no later batch waits for a compiler.
                for variables in (True, False):
                    result, *_ = self._call(name, block, trial, part_args, part_kwargs, variables)
                    self._capture.try_backward(_differentiable(result), apart)
            self._trials[key] = trial
        return self._trials[key]

    def _judged(
        self, name: str, block: nn.Module, calls: Sequence[Call], result: Any, records: int
    ) -> _Trial:
        """What a block's run shows.

        Raises:
            UnsupportedLayerError: if its layers' ``(a, g)`` are not all that its trained parameters
                need, or if anything is in half precision.
        """
        for call in calls:
            if call.automatic is not None or call.doubtful:
                own = f"{call.site.name or 'a part of it'} ({type(call.site.module).__name__})"
                raise _refusal(name, block, f"has layers without a rule: {own} is computed again")
        outputs = _differentiable(result)
        if any(x.dim() == 0 or len(x) != records for x in outputs):
            raise _refusal(
                name, block, f"gives outputs without a row for each of {records} records"
            )
        if not outputs:
            return _Trial((), (), (), True, _hooks(block))
        losses = sum(x.flatten(1).sum(1) for x in outputs)
        assert isinstance(losses, Tensor)
        try:
            structure = verify_uses(losses, calls, self._parameters)
        except UnsupportedLayerError as error:
            what = str(error).partition(";")[0]
            raise _refusal(
                name, block, f"uses parameters in ways that no layer's call covers ({what})"
            ) from error
        if len(structure.reached) != len(calls):
            raise _refusal(name, block, "has a layer whose output is not used")
        if structure.halved:
            raise _refusal(name, block, "has numbers in half precision: type precision=float32")
        graph = uses_between([get_gradient_edge(losses)], (), {}).nodes
        return _Trial(
            [call.site for call in calls],
            [call.positions for call in calls],
            [_given(call) for call in calls],
            not structure.row_permuting_nodes and all(map(follows_from_shapes, graph)),
            " ".join(call.site.name.removeprefix(name) for call in calls) + _hooks(block),
        )


def _hooks(block: nn.Module) -> str:
    """Which hooks run inside a block, by the names of their functions."""
    return ";".join(
        f"{name}: {getattr(hook, '__qualname__', type(hook).__qualname__)}"
        for name, module in block.named_modules()
        if module is not block
        for hooks in (module._forward_pre_hooks, module._forward_hooks)
        for hook in hooks.values()
    )


def _differentiable(result: Any) -> list[Tensor]:
    return [x for x in Arguments.of(result)[1] if x.requires_grad]


def _given(call: Call) -> tuple[torch.Size, torch.dtype]:
    """Shape and dtype of a layer's output."""
    (edge,) = call.outputs
    found = output_metadata(edge.node)[edge.output_nr]
    return torch.Size(found.shape), found.dtype


def _declare(result: Any, inputs: Sequence[Tensor]) -> None:
    """Say of a compiled block that records keep their places in it."""
    stops = frozenset(
        (edge.node, edge.output_nr)
        for edge in (get_gradient_edge(x) for x in inputs if x.requires_grad)
    )
    outputs = [get_gradient_edge(x) for x in _differentiable(result)]
    for node in uses_between(outputs, stops, {}).nodes:
        declare_rows_kept(node)


def _refusal(name: str, block: nn.Module, why: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"block {name} ({type(block).__name__}) cannot be compiled: it {why}; expected blocks of "
        "layers with rules, which are given tensors: leave out compile"
    )
