"""The handler of any module without a rule: its call is computed again, for each record by itself.

Such a module is a function of its parameters and inputs. Of one record's share of the inputs, that
function's vector-Jacobian product with the record's output gradients is what the record adds to the
parameters' gradients. `torch.func.vmap` does this for all records together; where it cannot
(control flow that depends on the data), one record follows the other.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from dpft.privacy.clipping.calls import Call, Edge, uses_between
from dpft.privacy.clipping.rules import DirectUse, Rule, UnsupportedLayerError, Use

# Parts of a batch, for which a module with layers inside is computed again one after the other: its
# activations are held in addition to those of the whole model.
_PARTS = 4

# By how much of its norm a record's output may differ when it is computed alone.
_ROUNDING = 1e-3
_HALF_ROUNDING = 5e-2


class AutomaticRule(Rule):
    """Marks a module whose calls are computed again; `Recomputation` does it.

    ``loops`` tells whether `torch.func.vmap` cannot batch the module: found at the first attempt.
    """

    sums_over_positions = True

    def __init__(self) -> None:
        self.loops = False

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        raise AssertionError("an automatic rule needs the whole call, see Recomputation.uses")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call without its tensors, or what a call returned."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, tree: Any) -> tuple[Arguments, list[Tensor]]:
        """Take the tensors out of ``tree``, in order."""
        leaves, spec = pytree.tree_flatten(tree)
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        others = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, others, places), [leaves[i] for i in places]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """Return the same with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self.spec)


class _Forward(nn.Module):
    """A module's forward without the hooks on it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.inner.forward(*args, **kwargs)


@dataclass(frozen=True)
class Recomputation:
    """One call of a module as a function of some of its parameters and of one record.

    Attributes:
        rule: of the module, which remembers whether it can be batched.
        module: what was called.
        parameters: those to differentiate, by their names within the module.
        arguments: of the call, without tensors.
        batched: of each tensor argument, whether its rows are of the records (``(R k, ...)`` with
            ``k`` rows for each of ``R``); otherwise all records share it.
        picked: the outputs that depend on the parameters, by place among the output's tensors.
        shapes: of these outputs, and their types.
        records: ``R``, rows of the model's batch.
        precision: a context that has autocast as it was.
        paused: a context in which layer calls are not captured.
    """

    rule: AutomaticRule
    module: nn.Module
    parameters: Mapping[str, Tensor]
    arguments: Arguments
    batched: tuple[bool, ...]
    picked: tuple[int, ...]
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]
    records: int
    precision: Callable[[], AbstractContextManager[Any]]
    paused: Callable[[], AbstractContextManager[None]]

    def joined(self, arrived: Mapping[int, Tensor]) -> Tensor:
        """Join gradients of the outputs, by their number, as ``(R, n)``; zeros for the others."""
        like = next(iter(arrived.values()))
        parts = [
            arrived[i].reshape(self.records, -1)
            if i in arrived
            else like.new_zeros(self.records, shape.numel() // self.records)
            for i, (shape, _) in enumerate(self.shapes)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def uses(
        self, names: Mapping[str, str], tensors: Sequence[Tensor], g: Tensor, batch: int
    ) -> list[tuple[str, Use]]:
        """Return what the call adds to the gradients of its parameters, by canonical names.

        Raises:
            UnsupportedLayerError: if the module cannot be computed again.
        """
        # With one row of the model's batch there is nothing to split.
        split = [b and self.records > 1 for b in self.batched]
        # Rows of a record come one after the other.
        inputs = [
            x.reshape(batch, -1, *x.shape[1:]) if b else x
            for x, b in zip(tensors, split, strict=True)
        ]
        sizes = [shape.numel() // self.records for shape, _ in self.shapes]
        gradients = [
            part.reshape(batch, -1, *shape[1:]).to(dtype)
            for part, (shape, dtype) in zip(g.split(sizes, 1), self.shapes, strict=True)
        ]
        formed = self.gradients(list(names), inputs, gradients, split)
        way = "record by record" if self.rule.loops else "vmap"
        how = f"automatic, {type(self.module).__name__} again ({way})"
        return [
            (name, DirectUse(h, owned=True, how=how))
            for name, h in zip(names.values(), formed, strict=True)
        ]

    def gradients(
        self,
        locals_: Sequence[str],
        inputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        split: Sequence[bool],
    ) -> list[Tensor]:
        """Form per-example gradients of some parameters, ``(B, *shape)`` each."""
        batch = len(gradients[0])
        parts = min(batch, _PARTS) if any(self.module.children()) and not self.rule.loops else 1
        size = -(-batch // parts)
        formed = []
        for part in (slice(start, start + size) for start in range(0, batch, size)):
            few = [x[part] if b else x for x, b in zip(inputs, split, strict=True)]
            formed.append(self._formed(locals_, few, [g[part] for g in gradients], split))
        if len(formed) == 1:
            return formed[0]
        return [torch.cat(several) for several in zip(*formed, strict=True)]

    def alone(self, inputs: Sequence[Tensor], record: int) -> tuple[Tensor, ...]:
        """Compute the outputs of one record, with nothing else in the batch."""
        rows = [
            x.unflatten(0, (self.records, -1))[record].clone() if b else x
            for x, b in zip(inputs, self.batched, strict=True)
        ]
        return self._run({}, rows)

    def _formed(
        self,
        locals_: Sequence[str],
        inputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        split: Sequence[bool],
    ) -> list[Tensor]:
        parameters = {name: self.parameters[name].detach() for name in locals_}
        if len(gradients[0]) > 1 and not self.rule.loops:
            try:
                return self._batched(parameters, inputs, gradients, split)
            except torch.OutOfMemoryError:
                raise
            except Exception:
                self.rule.loops = True
        formed: list[list[Tensor]] = []
        for i in range(len(gradients[0])):
            rows = [x[i] if b else x for x, b in zip(inputs, split, strict=True)]
            try:
                formed.append(self._one(parameters, rows, [g[i] for g in gradients]))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise UnsupportedLayerError(
                    f"{type(self.module).__name__} has no rule, and could not be computed again "
                    f"for one record ({type(error).__name__}: {error}); expected a module whose "
                    "forward does so. Freeze its parameters (requires_grad_(False)) or pass "
                    "rules={'module.Class': rule}"
                ) from error
        return [torch.stack(several) for several in zip(*formed, strict=True)]

    def _batched(
        self,
        parameters: Mapping[str, Tensor],
        inputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        split: Sequence[bool],
    ) -> list[Tensor]:
        def one(rows: Sequence[Tensor], gs: Sequence[Tensor]) -> Any:
            pulled: Any = vjp(lambda values: self._run(values, rows), dict(parameters))
            return pulled[1](tuple(gs))[0]

        dims = [0 if b else None for b in split]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # functions that vmap runs in a loop of its own
            found = vmap(one, in_dims=(dims, [0] * len(gradients)))(list(inputs), list(gradients))
        return [found[name] for name in parameters]

    def _one(
        self, parameters: Mapping[str, Tensor], rows: Sequence[Tensor], gs: Sequence[Tensor]
    ) -> list[Tensor]:
        with torch.enable_grad():
            values = {name: p.detach().requires_grad_() for name, p in parameters.items()}
            outputs = self._run(values, rows)
        pairs = [(y, g) for y, g in zip(outputs, gs, strict=True) if y.requires_grad]
        with self.paused():  # what is checkpointed inside runs once more here
            found = torch.autograd.grad(
                [y for y, _ in pairs],
                list(values.values()),
                [g for _, g in pairs],
                allow_unused=True,
            )
        return [
            torch.zeros_like(p) if h is None else h
            for h, p in zip(found, values.values(), strict=True)
        ]

    def _run(
        self, parameters: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        named = {f"inner.{name}": p for name, p in parameters.items()}
        with self.paused(), self.precision():
            tree = functional_call(_Forward(self.module), named, self.arguments.filled(inputs))
        tensors = Arguments.of(tree)[1]
        return tuple(tensors[i] for i in self.picked)


@dataclass(eq=False, kw_only=True)
class ModuleCall(Call):
    """A call of a module that is computed again, in place of the layers' calls inside it.

    Attributes:
        recomputation: how to compute the call again.
        stops: where its inputs come from in the graph.
    """

    by_rule: ClassVar[bool] = False

    recomputation: Recomputation
    stops: frozenset[Edge]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._arrived: dict[int, Tensor] = {}

    def input(self) -> None:
        return None

    def receive(self, number: int, g: Tensor) -> Tensor | None:
        self._arrived[number] = g
        if not self.awaited.issubset(self._arrived):
            return None
        arrived, self._arrived = self._arrived, {}
        return self.recomputation.joined(arrived)

    def counts(self, names: Mapping[int, str]) -> Counter[str]:
        edges = [self.outputs[i] for i in sorted(self.awaited)]
        found = uses_between(edges, self.stops, names).counts
        return Counter({name: found[name] for name in self.site.names.values()})

    def uses(self, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
        self.check_rows(g, batch * rows)
        return self.recomputation.uses(self.site.names, self.inputs(), g, batch)


def close(y: Tensor, expected: Tensor) -> bool:
    """Return whether rounding explains the difference, where ``expected`` is finite."""
    if not y.is_floating_point():
        return True
    allowed = _HALF_ROUNDING if y.dtype.itemsize < 4 else _ROUNDING
    whole = expected.double().where(expected.isfinite(), 0)
    difference = (y.double() - whole).where(expected.isfinite(), 0).norm()
    return bool(difference <= allowed * whole.norm())
