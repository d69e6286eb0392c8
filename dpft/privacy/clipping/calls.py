"""Layers that own trained parameters, and what one captured call of a layer adds to gradients."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from dpft.privacy.clipping.functional import Recomputation
from dpft.privacy.clipping.rules import Rule, UnsupportedLayerError, Use, find_rule, rule_names
from dpft.privacy.clipping.rules.linear import BroadcastRule

_BUILT_IN = "dpft.privacy."  # where the rules and uses are that dpft tests

# What gives a parameter in another layout or precision. Autocast keeps the rounded copy and double
# backward the transposed one: of several uses only the first has an edge to the parameter itself.
_ALIASES = frozenset({"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0"})


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


def find_sites(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    rules: Mapping[str, Rule],
    sharded: bool = False,
) -> dict[str, Site]:
    """Find the layers with a rule, one entry per module; others are computed again (`frames`)."""
    canonical = {id(parameter): name for name, parameter in parameters.items()}
    sites: dict[str, Site] = {}
    without_rule: dict[str, str] = {}
    for module_name, module in model.named_modules():
        _refuse_what_mixes(module_name or "the model", module)
        own = {
            local: canonical[id(parameter)]
            for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in canonical
        }
        if not own:
            continue
        rule = None if is_parametrized(module) else find_rule(module, rules)
        if rule is not None:
            sites[module_name] = Site(module_name, module, rule, MappingProxyType(own))
            continue
        # A module that only holds parameters for others is never called: its hooks do not run.
        runs = type(module).forward is not nn.Module.forward
        broadcasts = runs and not isinstance(module, ParametrizationList)
        for local, name in own.items():
            if parameters[name].dim() > 1 and len(parameters[name]) == 1 and broadcasts:
                bare = BroadcastRule(local)
                sites[name] = Site(name, module, bare, MappingProxyType({local: name}))
            else:
                without_rule[name] = type(module).__name__
    # A parameter may also be registered with a module that does not use it (an MLM head's bias);
    # that it is used by the layer with a rule only is checked on the graph.
    covered = {name for site in sites.values() for name in site.names.values()}
    unsupported = [f"{n} ({kind})" for n, kind in without_rule.items() if n not in covered]
    if unsupported and sharded:
        raise UnsupportedLayerError(
            f"no clipping rule for {len(unsupported)} trainable and sharded parameter(s): "
            f"{', '.join(unsupported)}. Layers with a rule: {rule_names(rules)}; parameters of "
            "shape (1, ...) that are broadcast over the batch need none. Freeze the "
            "parameters (requires_grad_(False)), leave them whole on every rank "
            "(parallel=data), or pass rules={'module.Class': rule}"
        )
    return sites


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
        outputs: where its outputs lie in the autograd graph: one, but for `automatic` calls.
        root: whether no other call comes before some output: a backward must name it as a target.
        leaves: the tensors that stood for the layer's parameters while it ran, where those are not
            the parameters themselves (sharded ones).
        positions: rows of the layer's input for each row of the model's batch, next to each other.
        doubtful: whether the rows may not be of records: a call around it may take over.
        automatic: how to compute the call again, where its layer has no rule.
        stops: where inputs of an automatic call come from in the graph.
        awaited: which outputs the losses depend on.
    """

    site: Site
    saved: Tensor | None
    outputs: Sequence[GradientEdge]
    root: bool
    leaves: Mapping[str, Tensor] = field(default_factory=dict)
    positions: int = 1
    doubtful: bool = False
    automatic: Recomputation | None = None
    stops: frozenset[tuple[Node, int]] = frozenset()

    def __post_init__(self) -> None:
        self.awaited = frozenset(range(len(self.outputs)))
        self._held: tuple[Tensor, ...] | None = None
        self._arrived: dict[int, Tensor] = {}

    def inputs(self) -> tuple[Tensor, ...]:
        """Return the layer's inputs, recomputed where it was checkpointed; none if not needed.

        Of a layer with a rule it is the first one, ``(R, ...)`` with ``R`` rows of the model's
        batch: several rows for each of these become positions, ``(R, positions, ...)``.
        """
        if self._held is not None or self.saved is None:
            return self._held or ()
        node: Any = self.saved.grad_fn
        saved = tuple(x.detach() for x in node.saved_tensors)
        return saved if self.automatic is not None else tuple(map(self._by_record, saved))

    def input(self) -> Tensor | None:
        """Return the first of `inputs`, which is all that a layer with a rule has."""
        return next(iter(self.inputs()), None)

    def receive(self, number: int, g: Tensor) -> Tensor | None:
        """Take in an output's gradient; return the whole call's once all have come."""
        if self.automatic is None:
            return self._by_record(g)
        self._arrived[number] = g
        if not self.awaited.issubset(self._arrived):
            return None
        arrived, self._arrived = self._arrived, {}
        return self.automatic.joined(arrived)

    def uses(self, names: Mapping[int, str]) -> Counter[str]:
        """Count how often the call uses each of its parameters in what the losses depend on."""
        if self.automatic is None:
            return Counter(self.site.names.values())
        edges = [self.outputs[i] for i in sorted(self.awaited)]
        found = uses_between(edges, self.stops, names).counts
        return Counter({name: found[name] for name in self.site.names.values()})

    def hold(self) -> None:
        """Unpack the inputs, which within one backward may be done once only, and keep them."""
        self._held = self.inputs()

    def let_go(self) -> None:
        """Undo `hold`: another backward may unpack the inputs again."""
        self._held = None

    def release(self) -> None:
        """Forget the inputs for good."""
        self.saved = self._held = None

    def _by_record(self, x: Tensor) -> Tensor:
        return x if self.positions == 1 else x.unflatten(0, (-1, self.positions))


class Captured(NamedTuple):
    """The layer calls of one forward, in order, and the layers that ran with gradients disabled."""

    calls: Sequence[Call]
    hidden: Collection[str]


def uses_of(call: Call, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
    """Return what one call adds to the gradients of its parameters, by their canonical names.

    Of ``B`` records with ``rows`` of the model's batch each, which become further positions.
    """
    check_rows(call, batch * rows, g)
    if call.automatic is not None:
        return call.automatic.uses(call.site.names, call.inputs(), g, batch)
    a, g = rule_inputs(call, g, batch, rows)
    names = call.site.names
    uses = call.site.rule.uses(call.site.module, a, g)
    if uses.keys() != names.keys():
        raise UnsupportedLayerError(
            f"layer {call.site.name!r} ({type(call.site.module).__name__}) trains "
            f"{', '.join(names)}, but its rule gives gradients of {', '.join(uses) or 'none'}; "
            "expected the same. Weight normalisation and pruning by hooks make a layer's weight of "
            "other parameters, for which there is no rule; torch.nn.utils.parametrizations has one "
            "of the former"
        )
    for local, use in uses.items():
        if not is_built_in(use):
            raise UnsupportedLayerError(
                f"the rule for parameter {names[local]!r} gives a {type(use).__qualname__}; "
                "expected a MatrixUse, EmbeddingUse or DirectUse of dpft.privacy.clipping.rules, "
                "whose norms and sums are of one and the same gradients"
            )
    return [(names[local], use) for local, use in uses.items()]


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


def check_rows(call: Call, batch: int, g: Tensor) -> None:
    """Raise UnsupportedLayerError unless a call's rows are the records of the losses."""
    site, a = call.site, call.input() if call.automatic is None else None
    shape = g.shape if a is None else a.shape
    positions_only = isinstance(site.module, nn.Embedding) and len(shape) < 2
    if positions_only or len(shape) == 0 or shape[0] != batch or len(g) != batch:
        raise UnsupportedLayerError(
            f"layer {site.name!r} ({type(site.module).__name__}) was called with an input of shape "
            f"{tuple(shape)} for {batch} losses; expected one row per record, shape "
            f"({batch}, ...). A lookup shared by the batch, such as positions, must be given as "
            "(B, T), or lie in a module without dropout, which can be computed again for each "
            "record: type model.dropout=0"
        )


def variable_of(node: Node | None) -> Tensor | None:
    """Return the leaf that a node stands for, itself or through aliases."""
    while node is not None and node.name() in _ALIASES:
        node = node.next_functions[0][0]
    variable: Tensor | None = getattr(node, "variable", None)
    return variable


class Between(NamedTuple):
    """How often each parameter is used between inputs and outputs; the functions; other leaves."""

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
