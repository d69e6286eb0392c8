"""The checks of layer rules against autograd, and that each layer's rows are the losses' records.

Rules are compared in one backward, a parameter at a time. A layer that sees the records in another
order than the losses has norms of other records than its sum, and so has one whose rows depend on
several records. A model that does so by its data (records sorted by length, masked positions
gathered into as many rows as there are records) may look right in many batches before: where the
graph lets rows change places, every batch is looked at.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from dpft.privacy.checks import Reweighted, random_state_kept
from dpft.privacy.clipping.calls import Call, Structure, is_built_in, rule_inputs
from dpft.privacy.clipping.capture import Capture, Listener
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.rules import UnsupportedLayerError, Use
from dpft.privacy.precision import full_precision

# Records of a batch that rules are checked on, where they may be computed by themselves.
RECORDS = 4

# Factors of a record's loss: powers of two, which scale a gradient without rounding it, and of at
# most 1, so that none overflows.
_FACTORS = 8


class Verified(NamedTuple):
    """The result of a comparison: `conclusive` if all gradients could show a wrong rule.

    One that is zero or nearly so (before a layer that starts at zero) is what any rule gives. Where
    a record is not finite, a comparison on the finite ones is enough for ``finite``.
    """

    conclusive: bool
    finite: bool


def records_to_check(size: int, weights: Tensor | None) -> Tensor:
    """Return indices of up to four records of a batch, from first to last, ``(n,)`` in int64.

    A microbatch is sorted by length: they differ in padding as much as its records do.
    """
    usable = torch.arange(size) if weights is None else weights.cpu().nonzero().flatten()
    last = len(usable) - 1
    if last < 0:
        return torch.zeros(1, dtype=torch.int64)
    places = sorted({round(last * part / (RECORDS - 1)) for part in range(RECORDS)})
    return usable[torch.tensor(places, dtype=torch.int64)]


def factors_of(batch: int, turn: int) -> Tensor:
    """Return factors of the records' losses, ``(B,)``: all different, for up to eight records.

    ``turn`` changes them from batch to batch: two of many records share one in one batch of eight.
    """
    generator = torch.Generator().manual_seed(turn)
    # Said, or a default device of the caller's would be asked for numbers of this generator.
    return 0.5 ** (torch.randperm(batch, generator=generator, device="cpu") % _FACTORS)


@contextmanager
def each_gradient(
    parameters: Mapping[str, Tensor], complete: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Around a backward to the parameters: report each gradient once complete, and keep none."""

    def at(name: str, gradient: Tensor) -> Tensor:
        complete(name, gradient)
        # In place of the gradient autograd keeps one number.
        return gradient.new_zeros(()).expand_as(gradient)

    handles = [p.register_hook(partial(at, name)) for name, p in parameters.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_order(
    capture: Capture,
    losses: Tensor,
    structure: Structure,
    rows: int,
    turn: int,
    moving: Sequence[Node],
) -> None:
    """Check that each layer's rows are the records of the losses, in their order.

    Of losses multiplied by powers of two each row's output gradient is multiplied likewise, to the
    last bit. Two backwards towards the layers' outputs, without one weight gradient: of the batch
    they hold nothing but its graph. ``moving`` are functions that may move rows, for the error.

    Raises:
        UnsupportedLayerError: if a row is not its record's.
    """
    order = Reweighted(3e-2 if structure.halved else 1e-3, sums=True)
    batch, leaves = len(losses), structure.leaves

    def backward(weighted: Tensor, note: Listener) -> None:
        def listener(call: Call, g: Tensor) -> None:
            call.hold()  # what is recomputed and not asked for is kept
            call.check_rows(g, batch * rows)
            call.let_go()
            note(call, g)

        if capture.packed:
            with each_gradient(leaves, lambda name, g: None), capture.listening(listener):
                targets = [*leaves.values()]
                torch.autograd.grad(weighted.sum(), targets, retain_graph=True, allow_unused=True)
            return
        others, calls = structure.other_leaves, structure.reached
        capture.backward(weighted, calls, listener, other_leaves=others, retain_graph=True)

    backward(losses, order.first)
    factors = factors_of(batch, turn).to(losses.device)
    order.by(factors.repeat_interleave(rows))
    backward(losses * factors.to(losses.dtype), order.second)
    name = order.disagreeing()
    if name is None:
        return
    names = ", ".join(sorted({node.name() for node in moving}))
    why = (
        f"rows change places inside the model ({names})"
        if names
        else "records depend on each other, rows are in another order, or a hook changes gradients "
        "by their size"
    )
    raise UnsupportedLayerError(
        f"the rule for parameter {name!r} gives another gradient than autograd: when each record's "
        "loss got a factor, not every row of the layer's output gradient got its own record's, "
        f"since {why}; expected row i of every layer to be of record i alone, in every batch: sort "
        "and gather before the model is called, and normalise within a record"
    )


def check_rules(
    capture: Capture,
    losses: Tensor,
    structure: Structure,
    groups: Sequence[Group],
    rows: int,
    weights: Tensor | None,
    *,
    turn: int,
    retain_graph: bool,
) -> Verified:
    """Compare the rules' sums with autograd's gradients; nothing is clipped yet.

    One backward of losses that have a factor each brings every layer's output gradient, which its
    rule makes a sum of, and every parameter's gradient, which must be that sum. Each is forgotten
    when it was compared: an ordinary backward takes more memory. That rows are those of their
    records is left to `check_order`, and for rules from elsewhere to `_check_apart`.

    Raises:
        UnsupportedLayerError: naming a parameter whose rule gives another gradient, or whose
            ``.grad`` was written to.
    """
    leaves, halved, batch = structure.leaves, structure.halved, len(losses)
    usable = losses.detach().isfinite()
    usable = usable if weights is None else usable & (weights != 0).to(usable.device)
    factors = factors_of(batch, turn).to(losses.device, losses.dtype)
    weighted = torch.where(usable, losses * factors, losses.new_zeros(())).sum()
    sums = RuleSums(leaves, structure.reached, batch, halved)
    before = _versions(leaves)

    @torch.no_grad()
    def listen(call: Call, g: Tensor) -> None:
        call.hold()
        size = g.numel() + sum(x.numel() for x in call.inputs())
        uses = call.uses(g, batch, rows)
        if call.by_rule:
            if _agrees_on_finite(capture, call, g, batch, rows, uses, halved):
                sums.alone.update(call.site.names.values())
            if not is_built_in(call.site.rule):
                few = records_to_check(batch, weights)
                _check_apart(call, g, batch, rows, uses, few, halved)
        lengths = torch.linalg.vector_norm(g, dim=-1).sum(dtype=torch.float64)
        for name, use in uses:
            sums.add(name, use, size, lengths)
        call.let_go()

    with each_gradient(leaves, sums.complete), capture.listening(listen), full_precision():
        torch.autograd.grad(
            weighted, [*leaves.values()], retain_graph=retain_graph, allow_unused=True
        )
    eps = torch.finfo(losses.dtype).eps  # where nothing is halved, the losses are not
    verified = sums.verify(groups, *((3e-2, 3e-4) if halved else (1e-3, 100 * eps)))
    for name, version in _versions(leaves).items():
        if version != before[name]:
            raise UnsupportedLayerError(
                f".grad of parameter {name!r} was written to by a backward that was asked for "
                "no gradient: some function of the model does so itself (fused accumulation "
                "of gradients); expected gradients that autograd alone accumulates"
            )
    return verified


def _agrees_on_finite(
    capture: Capture,
    call: Call,
    g: Tensor,
    batch: int,
    rows: int,
    uses: Sequence[tuple[str, Use]],
    halved: bool,
) -> bool:
    """Compare a rule with autograd on a call's finite records, by running the layer on these again.

    Autograd's gradient of the whole batch is not finite, whatever factors the records have. Returns
    whether this was needed and possible: it is not for a layer with several arguments, nor where
    other hooks surround those of the capture.
    """
    a, g = rule_inputs(call, g, batch, rows)
    finite = [x.flatten(1).isfinite().all(1) for x in (a, g) if x is not None]
    index = torch.stack(finite).all(0).nonzero().flatten()
    module, names = call.site.module, call.site.names
    if a is None or len(index) in (0, batch):
        return False
    if len(signature(module.forward).parameters) != 1 or not capture.sees_last(module):
        return False
    x, slope = (part[index].flatten(0, (rows > 1) + (call.positions > 1)) for part in (a, g))
    x, slope = (one.float() if one.dtype == torch.bfloat16 else one for one in (x, slope))
    # Copies, since hooks on the parameters are not for this gradient.
    own = {k: p.detach().requires_grad_() for k, p in module.named_parameters() if k in names}
    try:
        with capture.paused(), torch.enable_grad(), random_state_kept(x):
            y = torch.func.functional_call(module, own, (x,))
            found = torch.autograd.grad(y, [*own.values()], slope, allow_unused=True)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a layer raises that does not run by itself
        return False
    theirs = {names[k]: gradient for k, gradient in zip(own, found, strict=True)}
    # Terms may cancel, as those of a key's bias do: the rounding that is left shows nothing.
    share, epsilon = (3e-2, 2**-8) if halved else (1e-3, torch.finfo(slope.dtype).eps)
    largest = float(x.abs().max().clamp(min=1)) if x.is_floating_point() else 1.0
    rounding = 8 * epsilon * largest * float(slope.abs().sum())
    for name, use in uses:
        use, expected = use.rows(index), theirs[name]
        squared = use.squared_norm().value
        ours = use.weighted_sum(torch.ones_like(squared))
        difference = float((ours if expected is None else ours - expected).norm())
        terms = float(squared.clamp(min=0).sqrt().sum())
        if math.isfinite(difference) and difference > share * terms + rounding:
            raise UnsupportedLayerError(
                f"the rule for parameter {name!r} gives another gradient than autograd on the "
                f"finite records of a batch (difference {difference:.3g}): its layer computes "
                "something else than its type says"
            )
    return True


def _check_apart(
    call: Call,
    g: Tensor,
    batch: int,
    rows: int,
    uses: Sequence[tuple[str, Use]],
    records: Tensor,
    halved: bool,
) -> None:
    """Refuse a rule that gives a record another gradient by itself than among others."""
    a, g = rule_inputs(call, g, batch, rows)
    for index in records.to(g.device).split(1):
        own = None if a is None else a[index]
        alone = call.site.rule.uses(call.site.module, own, g[index])
        by_itself = {call.site.names[k]: use.per_example() for k, use in alone.items()}
        for name, use in uses:
            among, expected = use.rows(index).per_example(), by_itself[name]
            norm = float(expected.norm())
            if not math.isfinite(norm):  # the record will be dropped
                continue
            allowed = (3e-2 if halved else 1e-3) * norm
            if among.shape != expected.shape or not float((among - expected).norm()) <= allowed:
                raise UnsupportedLayerError(
                    f"the rule for parameter {name!r} gives record {int(index)} another gradient "
                    "by itself than in its batch; expected uses whose row i is of record i alone"
                )


def _versions(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, int] | None]:
    """Return of each ``.grad``, which tensor it is and how often it was changed."""
    grads = {name: parameter.grad for name, parameter in parameters.items()}
    return {n: None if g is None else (id(g), g._version) for n, g in grads.items()}


class RuleSums:
    """The rules' sums of a backward, against the gradients that autograd forms in it.

    ``alone`` counts the calls that were compared on their finite records alone.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], calls: Sequence[Call], records: int, halved: bool
    ) -> None:
        self.alone: Counter[str] = Counter()
        self._parameters = parameters
        self._records = records
        self._halved = halved
        self._calls = Counter(name for call in calls for name in call.site.names.values())
        self._outstanding = self._calls.copy()
        self._held: dict[str, list[Use]] = {}
        self._sums: dict[str, Tensor] = {}
        self._theirs: dict[str, Tensor] = {}
        # These, and norms of autograd's gradients and of the differences, are looked at in the end,
        # since a look makes a GPU halt.
        self._terms: dict[str, Tensor | float] = {}
        self._norms: dict[str, Tensor] = {}
        self._apart: dict[str, Tensor] = {}

    def add(self, name: str, use: Use, size: int, lengths: Tensor) -> None:
        """Take in a use of a parameter by all records, whose losses had their factors already.

        It keeps ``size`` numbers alive; if the sum has fewer, it is formed now. ``lengths`` is the
        sum of the lengths of its call's output gradients.
        """
        # Rounding is a share of what there was before it cancelled: each record's gradient in half
        # precision, where that is rounded, as of a head's bias; else the terms of each record,
        # of which a use may hold the sum alone.
        squared = use.squared_norm().value if self._halved else use.bound()
        terms = squared.clamp(min=0).sqrt().sum(dtype=torch.float64)
        terms = terms if self._halved else terms.maximum(lengths)
        self._terms[name] = self._terms.get(name, 0.0) + terms
        if size < self._parameters[name].numel():
            self._held.setdefault(name, []).append(use)
        else:
            self._sum(name, use)
        self._outstanding[name] -= 1
        if name in self._theirs and not self._outstanding[name]:
            self._compare(name)

    def complete(self, name: str, gradient: Tensor) -> None:
        """Take in what autograd has for a parameter."""
        self._theirs[name] = gradient
        if self._outstanding[name] <= 0:
            self._compare(name)

    def verify(self, groups: Sequence[Group], tolerance: float, rounding: float) -> Verified:
        """Return what the comparison has shown.

        Compared with a large gradient of its group a small one hardly counts; one that is alone
        in its group is scaled up to its own threshold, however small it is. Rounding explains a
        share ``tolerance`` of a gradient's norm (in half precision, of what the records had before
        they cancelled), and a share ``rounding`` of the largest gradient and of the terms within
        records.

        Raises:
            UnsupportedLayerError: naming a parameter whose rule gives another gradient.
        """
        taking_part = [n for n in self._parameters if n in self._norms or n in self._theirs]
        with torch.no_grad(), full_precision():
            for name in self._parameters:
                if name not in self._norms:
                    self._compare(name)
        norms = {name: float(norm) for name, norm in self._norms.items()}
        # Where some record's gradient overflows, it will be dropped.
        finite = {name for name, norm in norms.items() if math.isfinite(norm)}
        largest = max((norms[name] for name in finite), default=0.0)
        conclusive = True
        for group in groups:
            of_group = max((norms[n] for n in group.parameters if n in finite), default=0.0)
            for name in (n for n in group.parameters if n in finite):
                # A gradient that is zero but for rounding is measured against larger ones.
                terms = float(self._terms.get(name, 0.0))
                terms = terms if math.isfinite(terms) else 0.0
                share = tolerance if self._halved else rounding
                allowed = max(tolerance * norms[name], share * terms)
                allowed += 1e-2 * tolerance * of_group + rounding * largest
                difference = float(self._apart[name])
                if not difference <= allowed:
                    raise UnsupportedLayerError(
                        f"the rule for parameter {name!r} gives another gradient than autograd "
                        f"(difference {difference:.3g}, expected at most {allowed:.3g}): its layer "
                        "computes something else than its type says, its input was changed in "
                        "place, or the losses are not in the order of the input's rows"
                    )
                if name in taking_part:
                    enough = 0.1 * tolerance * of_group + 10 * rounding * largest
                    conclusive = conclusive and norms[name] > enough
        seen = all(name in finite or self.alone[name] == self._calls[name] for name in norms)
        return Verified(conclusive, seen)

    def _compare(self, name: str) -> None:
        """Compare, once all uses have arrived, and forget what was compared."""
        theirs = self._theirs.pop(name, None)
        ours = self._sum(name, *self._held.pop(name, []))
        del self._sums[name]
        theirs = None if theirs is None else theirs.to(ours.dtype)
        self._norms[name] = ours.new_zeros(()) if theirs is None else theirs.norm()
        self._apart[name] = (ours if theirs is None else ours.sub_(theirs)).norm()

    def _sum(self, name: str, *uses: Use) -> Tensor:
        """Return the sum of a parameter's uses so far, with these added."""
        if name not in self._sums:
            # Sharding may put a parameter together in half precision; its uses are not.
            like = self._parameters[name]
            kind = torch.promote_types(like.dtype, torch.float32)
            self._sums[name] = torch.zeros_like(like, dtype=kind)
        total = self._sums[name]
        for use in uses:
            use.add_weighted_sum(total.new_ones(self._records), total)
        return total
