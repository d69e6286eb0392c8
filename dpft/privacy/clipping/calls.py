"""Layers that own trained parameters, their calls, and what the autograd graph says about these."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn.utils.parametrize import is_parametrized

from dpft.privacy.clipping.rules import LayerRules, Rule, UnsupportedLayerError, Use
from dpft.privacy.token_losses import TokenLosses

_BUILT_IN = "dpft."  # where the rules and uses are that dpft tests

# What gives a parameter in another layout or precision. Autocast keeps the rounded copy and double
# backward the transposed one: of several uses only the first has an edge to the parameter itself.
_ALIASES = frozenset({"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0"})

Edge = tuple[Node, int]


@dataclass(frozen=True)
class Site:
    """A layer that owns trained parameters, its rule, and their canonical names by local name."""

    name: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]

    def check_joins(self, rows: int) -> None:
        """Raise UnsupportedLayerError if the layer cannot join several rows of one record."""
        if rows > 1 and not self.rule.sums_over_positions:
            raise UnsupportedLayerError(
                f"{self.name} ({type(self.module).__name__}) cannot be clipped with {rows} rows "
                "for each record; expected layers of texts: linear, embedding and layer norm"
            )


class Sites:
    """The layers of a model that own trained parameters, one entry per module.

    Attributes:
        layers: those with a rule, by module name.
        bare: names of parameters of other modules, with these modules.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], rules: LayerRules
    ) -> None:
        canonical = {id(parameter): name for name, parameter in parameters.items()}
        self.layers: dict[str, Site] = {}
        self.bare: list[tuple[str, nn.Module]] = []
        self.rules = rules
        for module_name, module in model.named_modules() if parameters else ():
            _refuse_what_mixes(module_name or "the model", module)
            given = module.named_parameters(recurse=False, remove_duplicate=False)
            own = {local: canonical[id(p)] for local, p in given if id(p) in canonical}
            if not own:
                continue
            rule = None if is_parametrized(module) else rules.find(module)
            if rule is not None:
                self.layers[module_name] = Site(module_name, module, rule, MappingProxyType(own))
            else:
                self.bare += [(name, module) for name in own.values()]

    def refuse_bare(self) -> None:
        """Raise UnsupportedLayerError for parameters that no layer with a rule owns.

        A parameter may also be registered with a module that does not use it (an MLM head's bias);
        that it is used by the layer with a rule only is checked on the graph.
        """
        covered = {name for site in self.layers.values() for name in site.names.values()}
        left = [f"{n} ({type(module).__name__})" for n, module in self.bare if n not in covered]
        if left:
            raise UnsupportedLayerError(
                f"no clipping rule for {len(left)} trainable parameter(s): {', '.join(left)}. "
                f"Layers with a rule: {self.rules.names()}. Freeze the parameters "
                "(requires_grad_(False)), pass rules={'module.Class': rule}, or, where they are "
                "sharded, leave them whole on every rank (parallel=data)"
            )


def _refuse_what_mixes(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.modules.batchnorm._NormBase) and (
        module.track_running_stats or isinstance(module, nn.modules.batchnorm._BatchNorm)
    ):
        raise UnsupportedLayerError(
            f"{name} ({type(module).__name__}) mixes or keeps statistics of the records of a "
            "batch, trained or frozen; expected a layer that treats each record alone, such as "
            "GroupNorm"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        raise UnsupportedLayerError(
            f"{name} ({type(module).__name__} with max_norm) rescales what is looked up, trained "
            "or frozen: its table shows what the records hold, without noise; expected "
            "max_norm=None"
        )


class _Save(torch.autograd.Function):
    """Holds tensors as autograd does; takes no part in any computation."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("nothing is computed from this output")


def save_inputs(token: Tensor, *tensors: Tensor) -> Tensor:
    """Hold a call's inputs the way autograd saves tensors: what `Call` unpacks."""
    saved: Tensor = _Save.apply(token, *tensors)  # type: ignore[no-untyped-call]
    return saved


@dataclass(eq=False)
class Call:
    """One captured forward call of one layer.

    Attributes:
        saved: holds its inputs; None if they are not needed.
        outputs: where its outputs are in the autograd graph: one, of a layer with a rule.
        root: whether no other call comes before some output: a backward must name it as a target.
        leaves: the tensors in place of the layer's parameters while it ran, where those are not
            the parameters themselves (sharded ones).
        positions: rows of the layer's input for each row of the model's batch, next to each other.
        doubtful: whether the rows may not be of records: a call around it may take over.
        awaited: which outputs the losses depend on.
    """

    by_rule: ClassVar[bool] = True

    site: Site
    saved: Tensor | None
    outputs: Sequence[GradientEdge]
    root: bool
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    positions: int = 1
    doubtful: bool = False

    def __post_init__(self) -> None:
        self.awaited = frozenset(range(len(self.outputs)))
        self._held: tuple[Tensor, ...] | None = None

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the layer's inputs, recomputed where it was checkpointed; none if not needed.

        A layer with a rule has one, ``(R, ...)`` with ``R`` rows of the model's batch: several rows
        for each of these become positions, ``(R, positions, ...)``.
        """
        return self.unpacked() if self._held is None else self._held

    def unpacked(self) -> tuple[Tensor, ...]:
        """Return the inputs as autograd has saved them."""
        node: Any = None if self.saved is None else self.saved.grad_fn
        return () if node is None else tuple(self.by_record(x.detach()) for x in node.saved_tensors)

    def input(self) -> Tensor | None:
        """Return the input of a layer with a rule."""
        return next(iter(self.inputs()), None)

    def receive(self, number: int, g: Tensor) -> Tensor | None:
        """Take in an output's gradient; return the whole call's once all have come."""
        return self.by_record(g)

    def counts(self, names: Mapping[int, str]) -> Counter[str]:
        """Count how often the call uses each of its parameters in what the losses depend on."""
        return Counter(self.site.names.values())

    def uses(self, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
        """Return what the call adds to the gradients of its parameters, by their canonical names.

        Args:
            g: gradient of the call's output.
            batch: ``B``, the number of records.
            rows: rows of the model's batch for each record, which become further positions.
        """
        self.check_rows(g, batch * rows)
        a, g = rule_inputs(self, g, batch, rows)
        site, names = self.site, self.site.names
        uses = site.rule.uses(site.module, a, g)
        if uses.keys() != names.keys():
            raise UnsupportedLayerError(
                f"layer {site.name!r} ({type(site.module).__name__}) trains "
                f"{', '.join(names)}, but its rule gives gradients of {', '.join(uses) or 'none'}; "
                "expected the same. Weight normalisation and pruning by hooks make a layer's "
                "weight of other parameters, for which there is no rule; "
                "torch.nn.utils.parametrizations has one of the former"
            )
        for local, use in uses.items():
            if not is_built_in(use):
                raise UnsupportedLayerError(
                    f"the rule for parameter {names[local]!r} gives a {type(use).__qualname__}; "
                    "expected a MatrixUse, EmbeddingUse or DirectUse of "
                    "dpft.privacy.clipping.rules, whose norms and sums are of one and the same "
                    "gradients"
                )
        return [(names[local], use) for local, use in uses.items()]

    def check_rows(self, g: Tensor, batch: int) -> None:
        """Raise UnsupportedLayerError unless the call's rows are the records of the losses."""
        site, a = self.site, self.input()
        shape = g.shape if a is None else a.shape
        positions_only = isinstance(site.module, nn.Embedding) and len(shape) < 2
        if positions_only or len(shape) == 0 or shape[0] != batch or len(g) != batch:
            raise UnsupportedLayerError(
                f"layer {site.name!r} ({type(site.module).__name__}) was called with an input of "
                f"shape {tuple(shape)} for {batch} losses; expected one row per record, shape "
                f"({batch}, ...). A lookup shared by the batch, such as positions, must be given "
                "as (B, T), or be in a module without dropout, which can be computed again for "
                "each record: type model.dropout=0"
            )

    def hold(self) -> None:
        """Unpack the inputs, which within one backward may be done once only, and keep them."""
        self._held = self.inputs()

    def let_go(self) -> None:
        """Undo `hold`: another backward may unpack the inputs again."""
        self._held = None

    def release(self) -> None:
        """Forget the inputs for good."""
        self.saved = self._held = None

    def by_record(self, x: Tensor) -> Tensor:
        """View the rows of a tensor as positions of rows of the model's batch."""
        return x if self.positions == 1 else x.unflatten(0, (-1, self.positions))


class Captured(NamedTuple):
    """The layer calls of one forward, in order, and the layers that ran with gradients disabled."""

    calls: Sequence[Call]
    hidden: Collection[str]


def is_built_in(part: Rule | Use) -> bool:
    """Return whether a rule or use is one of dpft's own."""
    return type(part).__module__.startswith(_BUILT_IN)


def rule_inputs(call: Call, g: Tensor, batch: int, rows: int) -> tuple[Tensor | None, Tensor]:
    """Return the layer's input and its output's gradient as its rule takes them, of ``B`` records.

    Under autocast a layer multiplies in half precision: norms and sums are computed from the input
    as the layer rounded it, in float32 unless the rule keeps bfloat16.
    """
    a = call.input()
    if a is not None and a.is_floating_point() and a.dtype != g.dtype:
        a = a.to(g.dtype)
    keeps = g.dtype == torch.bfloat16 and call.site.rule.keeps_halves
    if g.dtype.itemsize < 4 and not keeps:
        g = g.float()
        a = a.float() if a is not None and a.is_floating_point() else a
    call.site.check_joins(rows)
    if rows > 1:
        g = g.unflatten(0, (batch, rows))
        a = None if a is None else a.unflatten(0, (batch, rows))
    return a, g


def variable_of(node: Node | None) -> Tensor | None:
    """Return the leaf of a node, itself or through aliases."""
    while node is not None and node.name() in _ALIASES:
        node = node.next_functions[0][0]
    variable: Tensor | None = getattr(node, "variable", None)
    return variable


class Between(NamedTuple):
    """The number of uses of each parameter between inputs and outputs; functions; other leaves."""

    counts: Counter[str]
    nodes: set[Node]
    leaves: list[Tensor]


def uses_between(
    outputs: Iterable[GradientEdge], stops: Collection[tuple[Node, int]], names: Mapping[int, str]
) -> Between:
    """Walk the graph from outputs to inputs."""
    counts: Counter[str] = Counter()
    seen: set[Node] = set()
    leaves: dict[Node, Tensor] = {}
    pending = [(edge.node, edge.output_nr) for edge in outputs]
    while pending:
        node, number = pending.pop()
        if (node, number) in stops:
            continue
        name = names.get(id(variable_of(node)))
        if name is not None:
            counts[name] += 1
        elif isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves[node] = leaf
        elif node not in seen:
            seen.add(node)
            pending += [(n, nr) for n, nr in node.next_functions if n is not None]
    return Between(counts, seen, list(leaves.values()))


class Structure(NamedTuple):
    """The layer calls of a batch, as found in its autograd graph.

    Attributes:
        reached: the calls that the losses depend on, in order.
        leaves: the tensors in place of the trained parameters in the graph, by name.
        other_leaves: where the graph ends in something else than parameters (inputs that require
            gradients): a layer above is not reached by a backward to the roots alone.
        halved: whether anything on the way to the losses is in half precision: frozen layers, what
            is between layers and the losses themselves round gradients as much as a trained
            layer does, though its own ``a`` and ``g`` may be in float32.
    """

    reached: list[Call]
    leaves: Mapping[str, Tensor]
    other_leaves: list[Tensor]
    halved: bool

    def outputs(self) -> list[GradientEdge]:
        """Return the outputs of the calls that the losses depend on."""
        return [call.outputs[i] for call in self.reached for i in call.awaited]


def find_structure(
    losses: Tensor,
    captured: Captured,
    leaves: Mapping[str, Tensor],
    reasons: Mapping[str, Sequence[str]],
) -> Structure:
    """Read the autograd graph, in which every use of every parameter must have been captured.

    A weight used outside its layer's ``forward`` (``F.linear(x, self.embedding.weight)``) is
    invisible to hooks and would be left out of norm and sum. Its edges in the graph are not. Every
    batch is checked: a walk through the graph is cheap next to a backward. ``reasons`` say why
    uses of a parameter could not be captured.

    Raises:
        UnsupportedLayerError: naming a parameter with a use that was not captured, or hidden
            layers that a function of the graph may run again; if the losses depend on no layer.
    """
    names = {id(parameter): name for name, parameter in leaves.items()}
    roots = [] if losses.grad_fn is None else [get_gradient_edge(losses)]
    uses, nodes, others = uses_between(roots, (), names)
    for leaf in others:
        if isinstance(leaf, nn.Parameter):
            raise UnsupportedLayerError(
                f"a parameter of shape {tuple(leaf.shape)} that requires gradients takes part "
                "in the losses but is not the clipper's; expected all of them in the model "
                "given to make_clipper, frozen or not before that call, and none made in a "
                "forward, as DoRA of peft makes one of a Conv1D: lora_dropout=0 there"
            )
    # Reversible blocks and reentrant checkpoints may run layers in a separate backward: their
    # gradients would go to ``.grad`` unclipped, or nowhere.
    function: type = torch.autograd.function.BackwardCFunction
    for node in nodes if captured.hidden else ():
        if isinstance(node, function) and not is_token_losses(node):
            raise UnsupportedLayerError(
                f"layers {', '.join(sorted(captured.hidden)[:4])} ran with gradients disabled, and "
                f"the losses depend on a function with a separate backward ({node.name()}), "
                "which may run them again where nothing is clipped; expected layers that run once. "
                "Checkpoint with use_reentrant=False; reversible models have no clipping rule"
            )
    reached = []
    expected: Counter[str] = Counter()
    for call in captured.calls:
        places = [i for i, edge in enumerate(call.outputs) if edge.node in nodes]
        call.awaited = frozenset(places)
        if places:
            reached.append(call)
            expected.update(call.counts(names))
    for name in leaves:
        if uses[name] != expected[name]:
            why = "; ".join(dict.fromkeys(reasons.get(name, ())))
            around = f", or of a module around it: {why}" if why else ""
            raise UnsupportedLayerError(
                f"parameter {name!r} is used {uses[name]} times in the computation of the "
                f"losses, but {expected[name]} of these uses went through its layer's forward; "
                "expected every use to be a call of the layer since the last backward, so that it "
                f"can be clipped{around}. Freeze the parameter (requires_grad_(False)), call the "
                "layer instead of its weight, and do not change its output in place"
            )
    if not reached:
        raise UnsupportedLayerError(
            "the losses do not depend on any trainable layer that was called; expected losses "
            "of this forward, neither detached nor constant"
        )
    halved = any(
        one.dtype.is_floating_point and one.dtype.itemsize < 4
        for node in nodes
        for one in output_metadata(node)
    )
    structure = Structure(reached, leaves, others, halved)
    if not all(call.by_rule for call in reached):
        # What a call is given may depend on a parameter that a call around it covers.
        ends = {(edge.node, edge.output_nr) for edge in structure.outputs()}
        for call in reached:
            call.root = not all(
                any(edge in ends for edge in _edges_below(call.outputs[i].node))
                for i in call.awaited
            )
    return structure


def output_metadata(node: Node) -> Sequence[Any]:
    """Return ``shape`` and ``dtype`` of what a function gave, which its backward differentiates."""
    dynamic: Any = node
    metadata: Sequence[Any] = dynamic._input_metadata
    return metadata


def is_token_losses(node: Node) -> bool:
    """Return whether it is `TokenLosses`, of which the name alone is no proof."""
    return getattr(type(node), "_forward_cls", None) is TokenLosses


def dominates(call: Call, losses: Tensor, others: Sequence[Call]) -> bool:
    """Return whether the losses depend on ``others`` and parameters through ``call`` alone.

    Only asked of a call with one row for each of the model's batch, and one output.
    """
    (output, *_), root = call.outputs, losses.grad_fn
    if not call.by_rule or call.positions > 1 or root is None or root is output.node:
        return False
    known = {edge.node for other in (call, *others) for edge in other.outputs}
    above = _edges_below(root, {(output.node, output.output_nr)})
    return not any(hasattr(node, "variable") or node in known for node, _ in above)


def _edges_below(root: Node, stops: Collection[Edge] = ()) -> Iterator[Edge]:
    """Go through what a function depends on, as far as ``stops``, which are left out."""
    pending, seen = [root], {root}
    while pending:
        for node, number in pending.pop().next_functions:
            if node is None or (node, number) in stops:
                continue
            yield node, number
            if node not in seen:
                seen.add(node)
                pending.append(node)
