"""The handler of any module without a rule: its call is computed again, for each record by itself.

Such a module is a function of its parameters and inputs. For one record's share of the inputs, the
vector-Jacobian product of that function with the record's output gradients is what the record adds
to the parameters' gradients. `torch.func.vmap` computes it for all records together; where it
cannot (control flow that depends on the data), one record follows the other.
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
_ROUNDING, _HALF_ROUNDING = 1e-3, 5e-2

Fill = Callable[[Sequence[Tensor]], Any]
"""Returns arguments, or what a call returned, with these tensors in place of the original ones."""


def tensors_of(tree: Any) -> tuple[list[Tensor], Fill]:
    """Return the tensors in ``tree``, in order, and what puts others in their places."""
    leaves, spec = pytree.tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def filled(tensors: Sequence[Tensor]) -> Any:
        whole = list(others)
        for place, tensor in zip(places, tensors, strict=True):
            whole[place] = tensor
        return pytree.tree_unflatten(whole, spec)

    return [leaves[i] for i in places], filled


class AutomaticRule(Rule):
    """The mark of a module whose calls are computed again, which `ModuleCall` does.

    Attributes:
        loops: whether `torch.func.vmap` cannot batch the module, as the first attempt showed.
    """

    sums_over_positions = True

    def __init__(self) -> None:
        self.loops = False

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        raise AssertionError("an automatic rule needs the whole call, see ModuleCall.uses")


class _Forward(nn.Module):
    """A module's forward without the hooks on it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.inner.forward(*args, **kwargs)


@dataclass(eq=False, kw_only=True)
class ModuleCall(Call):
    """A call of a module that is computed again, in place of the layers' calls inside it.

    It is a function of some of the module's parameters and of one record.

    Attributes:
        parameters: those to differentiate, by their names within the module.
        filled: returns the call's arguments with other tensors.
        batched: for each tensor argument, whether its rows are of the records (``(R k, ...)`` with
            ``k`` rows for each of ``R``); otherwise all records share it.
        stops: the places in the graph from which its inputs come.
        picked: the outputs that depend on the parameters, by place among the output's tensors.
        shapes: shapes and types of these outputs.
        records: ``R``, rows of the model's batch.
        precision: returns a context that has autocast as it was.
        paused: returns a context in which layer calls are not captured.
    """

    by_rule: ClassVar[bool] = False

    parameters: Mapping[str, Tensor]
    filled: Fill
    batched: tuple[bool, ...]
    stops: frozenset[Edge]
    picked: tuple[int, ...]
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]
    records: int
    precision: Callable[[], AbstractContextManager[Any]]
    paused: Callable[[], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._arrived: dict[int, Tensor] = {}

    def input(self) -> None:
        return None

    def receive(self, number: int, g: Tensor) -> Tensor | None:
        """Keep an output's gradient; return all of them as ``(R, n)`` once they have arrived."""
        self._arrived[number] = g
        if not self.awaited.issubset(self._arrived):
            return None
        arrived, self._arrived = self._arrived, {}
        parts = [
            arrived[i].reshape(self.records, -1)
            if i in arrived
            else g.new_zeros(self.records, shape.numel() // self.records)
            for i, (shape, _) in enumerate(self.shapes)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def counts(self, names: Mapping[int, str]) -> Counter[str]:
        edges = [self.outputs[i] for i in sorted(self.awaited)]
        found = uses_between(edges, self.stops, names).counts
        return Counter({name: found[name] for name in self.site.names.values()})

    def uses(self, g: Tensor, batch: int, rows: int = 1) -> list[tuple[str, Use]]:
        """Return what the call adds to the gradients of its parameters, as of `Call.uses`.

        Raises:
            UnsupportedLayerError: if the module cannot be computed again.
        """
        self.check_rows(g, batch * rows)
        # With one row of the model's batch there is nothing to split. Rows of a record come one
        # after the other.
        split = [b and self.records > 1 for b in self.batched]
        inputs = [
            x.reshape(batch, -1, *x.shape[1:]) if b else x
            for x, b in zip(self.inputs(), split, strict=True)
        ]
        sizes = [shape.numel() // self.records for shape, _ in self.shapes]
        gradients = [
            part.reshape(batch, -1, *shape[1:]).to(dtype)
            for part, (shape, dtype) in zip(g.split(sizes, 1), self.shapes, strict=True)
        ]
        formed = self.gradients(inputs, gradients, split)
        return [(self.site.names[local], DirectUse(h, owned=True)) for local, h in formed.items()]

    def gradients(
        self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], split: Sequence[bool]
    ) -> dict[str, Tensor]:
        """Form the parameters' per-example gradients, ``(B, *shape)`` each, by local names."""
        parameters = {name: p.detach() for name, p in self.parameters.items()}
        module, rule, batch = self.site.module, self.site.rule, len(gradients[0])
        assert isinstance(rule, AutomaticRule)

        def one(rows: Sequence[Tensor], gs: Sequence[Tensor]) -> Any:
            pulled: Any = vjp(lambda values: self._run(values, rows), parameters)
            return pulled[1](tuple(gs))[0]

        if batch > 1 and not rule.loops:
            size = -(-batch // _PARTS) if any(module.children()) else batch
            dims = [0 if b else None for b in split], [0] * len(gradients)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of functions that vmap runs in a loop
                    mapped = vmap(one, in_dims=dims, chunk_size=size)
                    found: dict[str, Tensor] = mapped(list(inputs), list(gradients))
                return found
            except torch.OutOfMemoryError:
                raise
            except Exception:
                rule.loops = True
        formed = []
        for i in range(batch):
            rows = [x[i] if b else x for x, b in zip(inputs, split, strict=True)]
            values = {name: p.detach().requires_grad_() for name, p in parameters.items()}
            try:
                with torch.enable_grad():
                    outputs = zip(self._run(values, rows), gradients, strict=True)
                pairs = [(y, g[i]) for y, g in outputs if y.requires_grad]
                with self.paused():  # what is checkpointed inside runs once more here
                    formed.append(
                        torch.autograd.grad(
                            [y for y, _ in pairs],
                            [*values.values()],
                            [g for _, g in pairs],
                            materialize_grads=True,
                        )
                    )
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise UnsupportedLayerError(
                    f"{type(module).__name__} has no rule, and could not be computed again for one "
                    f"record ({type(error).__name__}: {error}); expected a module whose forward "
                    "does so. Freeze its parameters (requires_grad_(False)) or pass "
                    "rules={'module.Class': rule}"
                ) from error
        return dict(zip(parameters, map(torch.stack, zip(*formed, strict=True)), strict=True))

    def alone(self, inputs: Sequence[Tensor], record: int) -> tuple[Tensor, ...]:
        """Compute the outputs of one record, with nothing else in the batch."""
        rows = [
            x.unflatten(0, (self.records, -1))[record].clone() if b else x
            for x, b in zip(inputs, self.batched, strict=True)
        ]
        return self._run({}, rows)

    def _run(
        self, parameters: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        named = {f"inner.{name}": p for name, p in parameters.items()}
        with self.paused(), self.precision():
            tree = functional_call(_Forward(self.site.module), named, self.filled(inputs))
        tensors, _ = tensors_of(tree)
        return tuple(tensors[i] for i in self.picked)


def close(y: Tensor, expected: Tensor) -> bool:
    """Return whether rounding explains the difference, where ``expected`` is finite."""
    if not y.is_floating_point():
        return True
    allowed = _HALF_ROUNDING if y.dtype.itemsize < 4 else _ROUNDING
    whole = expected.double().where(expected.isfinite(), 0)
    difference = (y.double() - whole).where(expected.isfinite(), 0).norm()
    return bool(difference <= allowed * whole.norm())
