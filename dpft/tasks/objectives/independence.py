"""A check that what a record adds does not depend on the other records in its batch.

The guarantee rests on it, and no check of gradients can see it: a model that ignores the attention
mask, counts positions from the padding, or changes its rotary scaling with the longest text of a
batch has gradients that are exact and sums whose sensitivity is unbounded.
"""

from __future__ import annotations

import functools
import gc
import math
import sys
import types
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dpft.config.errors import ModelError
from dpft.privacy import LostRecordError
from dpft.privacy.checks import Untouched, bit_sums, written
from dpft.privacy.precision import full_precision
from dpft.privacy.sampling import BLANK
from dpft.tasks.objectives.evaluation import Undropped, training_without_dropout

if TYPE_CHECKING:
    from dpft.parallel.pipeline import PipelinedSums
    from dpft.privacy import Clipper
    from dpft.privacy.clipping.groups import Group
    from dpft.tasks.units import TrainingSet, UnitBatch

# Differences that rounding explains, since kernels differ with the shape of a batch: of losses, and
# of clipped sums as a share of the threshold, where shapes vary and where they are fixed.
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5
_SHARE, _FIXED = 3e-4, 3e-5
# Kernels of attention on a GPU add up the same numbers in any order, so that one backward differs
# from the next: so many times the difference that was seen is allowed, and no more than this share.
_TIMES, _MOST = 4.0, 0.03


# The search of `kept` leaves out functions and objects of these packages.
_LIBRARIES = sys.stdlib_module_names | {
    *("accelerate", "datasets", "numpy", "peft", "PIL", "tokenizers", "torch", "torchvision"),
    *("transformers", "trl"),
}
_CONTAINERS = (dict, list, tuple, set, deque)
_HOLDERS = (*_CONTAINERS, nn.Module, types.CellType, types.MethodType, functools.partial)
_PLAIN = (int, float, complex, str, bytes, type(None))
_ITEMS = 2000  # of a container, that are searched


class WritesError(ModelError):
    """A forward writes to what is saved and gets no noise, or keeps something of its batch."""


def check_independence(
    data: TrainingSet,
    model: Any,
    clipper: Clipper | None = None,
    token_budget: int | None = None,
    pipeline: PipelinedSums | None = None,
) -> None:
    """Compare losses of training units alone, among others, and alone again.

    The shortest and a middle unit are batched with the longest, since what a model does may change
    with the length; where shapes are fixed, each with others of the same shape. A full microbatch
    of copies of the longest is tried too. The check runs as training does, without dropout, whose
    masks are other random numbers in other batches. With a clipper, sums of clipped gradients are
    compared, which show what losses hide while a new head's weights are small. What few batches may
    not show is found by structure: dropout masks that all rows share, rates at which whole layers
    are dropped, and what the loss or the model keeps from one forward to the next (`kept`).

    Args:
        data: the units, with the losses that are trained on.
        model: on its device; left in training mode if it was.
        clipper: attached to the model; left as after `reset`, and the model without gradients.
        token_budget: of microbatches; None: no larger batch is tried.
        pipeline: forms sums where ranks hold stages of the model, and all of them check together;
            its `stages` are the model.

    Raises:
        ModelError: if a loss, a buffer or a clipped sum differs. The message has no number of the
            data.
        WritesError: if a saved weight or buffer was written to, or anything is kept of a batch.
    """
    device = next(model.parameters()).device
    chosen = _chosen(data, token_budget)
    # Each is a batch, and the same units in batches of one.
    comparisons = [
        (data.batch(together, 0).to(device), [data.batch(one, 0).to(device) for one in apart])
        for together, apart in chosen
    ]
    passes = _Passes(data, model, clipper, pipeline)
    losses = passes.losses
    what = _drops_layers(model) if pipeline is None else ""
    # Without full precision kernels round by thousandths.
    with training_without_dropout(model) as undropped, full_precision():
        saved = Untouched(model)
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        for (together, apart), (indices, _) in zip(comparisons, chosen, strict=True):
            alone = torch.cat([losses(batch) for batch in apart])
            among = losses(together)
            again = torch.cat([losses(batch) for batch in apart])
            if _differ(alone, among) or _differ(alone, again):
                what = "losses differ"
            if token_budget is not None and pipeline is None:
                crowd = data.batch(_crowd(data, indices, token_budget), 0).to(device)
                crowded = passes.in_crowd(crowd)
                copies = alone[-1:].expand(len(crowded) - len(alone))
                if _differ(torch.cat([alone, copies]), crowded):
                    what = "losses differ in a full microbatch"
        touched = saved.changed()
        if touched and pipeline is None:
            raise WritesError(written(touched, model))
        what = f"it writes to {touched[0]}" if touched else what
        for name, buffer in model.named_buffers():
            if name in buffers and _differ(buffer, buffers[name]):
                what = f"its buffer {name} changes with the batch"
        if pipeline is not None and pipeline.any(bool(what)):
            what = what or "its buffers change with the batch on another rank"
        if not what and pipeline is None:
            _check_nothing_is_kept(passes, comparisons[-1][1][-1], model, data.losses)
            if _shares_a_mask(passes, undropped, comparisons[0][0]):
                what = "dropout of what all rows share"
        if not what and clipper is not None:
            share = _SHARE if data.shapes is None else _FIXED
            if any(_sums_differ(passes, *pair, clipper, share) for pair in comparisons):
                what = "gradients differ"
    if what:
        named = model if pipeline is None else model.part
        raise ModelError(
            f"with {type(named).__name__} the loss of a record depends on what else is in its "
            f"batch ({what}), so that no clipping bounds what one record adds; expected a model "
            "that uses the attention mask and the positions it is given, and draws no random "
            "numbers but dropout of each row: use another one, or model.dropout=0"
        )


def _chosen(data: TrainingSet, token_budget: int | None) -> list[tuple[list[int], list[list[int]]]]:
    """Return indices of units to compare: of a batch, and of each of its units alone."""
    # An array: ten million numbers of Python's own take 400 MB.
    order = np.argsort(data.lengths, kind="stable")
    places = (0, len(order) // 2, len(order) - 1)
    if data.shapes is None or token_budget is None:
        together = [*dict.fromkeys(int(order[place]) for place in places)]
        return [(together, [[i] for i in together])]
    near = {int(order[k]) for place in places for k in (max(0, place - 1), place)}
    return [
        # Alone each is in the last row but one: among others most are in another.
        (piece, [[BLANK] * (len(piece) - 2) + [i, BLANK] for i in piece if i != BLANK])
        for piece in data.microbatches(sorted(near), token_budget)
    ]


def _crowd(data: TrainingSet, together: Sequence[int], token_budget: int) -> list[int]:
    """Return indices of some units, and copies of the last that fill a microbatch.

    Where shapes are fixed the copies replace padding examples, all but one.
    """
    real = [i for i in together if i != BLANK]
    if data.shapes is not None:
        return real + real[-1:] * (len(together) - len(real) - 1) + [BLANK]
    room = token_budget // max(1, int(data.lengths[real[-1]]))
    full = data.microbatches(real[-1:] * max(1, min(room, len(data))), token_budget)[0]
    return real + full[len(real) :]


class _Passes:
    """Losses and clipped sums of batches, by a whole model or by the stages of a pipeline."""

    def __init__(
        self, data: TrainingSet, model: Any, clipper: Clipper | None, pipeline: PipelinedSums | None
    ) -> None:
        self._data, self._model = data, model
        self._clipper, self._pipeline = clipper, pipeline
        self._turn = 0

    def losses(self, batch: UnitBatch) -> Tensor:
        """Return the losses of units in float64."""
        if self._pipeline is not None:
            found = self._through_stages([batch])[0]
            self.forget()
            return found.double()
        found = self._forward(batch)
        if self._clipper is not None:
            self._clipper.reset()
        return batch.of_units(found).detach().double()

    @torch.no_grad()
    def in_crowd(self, batch: UnitBatch) -> Tensor:
        """Return `losses` by a model in one piece, without keeping activations."""
        with nullcontext() if self._clipper is None else self._clipper.paused():
            return batch.of_units(self._forward(batch)).double()

    def sums(self, batches: Sequence[UnitBatch]) -> dict[str, Tensor]:
        """Return clipped sums of the parameters that are clipped here, by name."""
        assert self._clipper is not None
        if self._pipeline is not None:
            self._through_stages(batches)
        else:
            for batch in batches:
                found = self._forward(batch)
                self._clipper.backward(found, rows=batch.rows_per_unit, weights=batch.weights)
        sums = {}
        for name, parameter in self._clipper.parameters.items():
            total, parameter.grad = parameter.grad, None
            sums[name] = torch.zeros_like(parameter) if total is None else total
        return sums

    def distances(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[float]:
        """Return norms of the difference of two sums, by clipping group of the whole model."""
        clipper = self._clipper
        assert clipper is not None

        def within(group: Group) -> float:
            apart = (one[name] - other[name] for name in group.parameters if name in one)
            return math.hypot(*(float(clipper.whole(tensor).norm()) for tensor in apart))

        found = [within(group) for group in clipper.groups]
        if self._pipeline is not None:  # a group may have parameters on other ranks
            squares = torch.tensor(found, dtype=torch.float64).square()
            return self._pipeline.over_stages(squares).sqrt().tolist()
        return [distance / clipper.repeats for distance in found]

    def forget(self) -> None:
        """Leave no sum behind, and nothing that the clipper remembers."""
        assert self._clipper is not None
        self._clipper.reset()
        for parameter in self._clipper.parameters.values():
            parameter.grad = None

    def _forward(self, batch: UnitBatch) -> Tensor:
        self._turn += 1
        torch.manual_seed(self._turn)
        return self._data.losses(self._model, batch)

    def _through_stages(self, batches: Sequence[UnitBatch]) -> list[Tensor]:
        assert self._pipeline is not None
        self._turn += 1
        torch.manual_seed(self._turn)
        return self._pipeline.losses(self._pipeline.add(self._data.losses, batches))


def _shares_a_mask(passes: _Passes, undropped: Undropped, batch: UnitBatch) -> bool:
    """Return whether dropout has a mask that does not grow with the batch."""
    sizes = []
    for index in ([0], [0, 0]):
        undropped.sizes.clear()
        passes.in_crowd(batch.units(torch.tensor(index)))
        sizes.append([*undropped.sizes])
    return any(once == twice for once, twice in zip(*sizes, strict=False) if once)


def _drops_layers(model: nn.Module) -> str:
    """Return the setting that drops whole layers for all rows at once; "" if there is none."""
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            own = getattr(holder, "__dict__", {})
            rates = {key: rate for key, rate in own.items() if "layerdrop" in key}
            if own.get("mode") == "batch":  # StochasticDepth of torchvision
                rates["p"] = own.get("p")
            for key, rate in rates.items():
                if isinstance(rate, float) and rate > 0:
                    return f"{type(holder).__name__} has {key}={rate}"
    return ""


def _check_nothing_is_kept(passes: _Passes, batch: UnitBatch, *roots: object) -> None:
    """Raise WritesError if loss or model keep something of a batch, which a later one may see.

    The same batch comes twice: a value that is overwritten with the same, or cached, is no memory.
    """
    passes.losses(batch)
    before = kept(*roots)
    passes.losses(batch)
    after = kept(*roots)
    if changed := sorted((after - before) + (before - after), key=str):
        raise WritesError(
            f"a forward leaves something of its batch in a {changed[0][1]} of {changed[0][0]}, "
            "which a later batch may see, so that no clipping bounds what one record adds; "
            "expected losses that follow from their arguments and the weights alone: keep no "
            "memory, queue or average of earlier batches"
        )


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by more than rounding; equal NaNs do not."""
    if one.shape != other.shape:
        return True
    one, other = one.double(), other.double()
    return not torch.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)


def _sums_differ(
    passes: _Passes, together: UnitBatch, apart: list[UnitBatch], clipper: Clipper, share: float
) -> bool:
    """Return whether the clipped sum of one batch is not that of its units together."""
    own = [0.0] * len(clipper.thresholds)
    try:
        try:
            one = passes.sums([together])
        except LostRecordError:  # once: until `collect` the clipper avoids it
            passes.forget()
            one = passes.sums([together])
        other = passes.sums(apart)
        if next(iter(clipper.parameters.values())).device.type != "cpu":
            # Every rank runs it again, whatever it has found: ranks run the layers together.
            for _ in range(2):
                again = passes.distances(one, passes.sums([together]))
                own = [*map(max, own, again)]
    finally:
        passes.forget()
        clipper.lost = False
    distances = passes.distances(one, other)
    return any(
        not distance <= max(share * threshold, min(_TIMES * rounding, _MOST * threshold))
        for threshold, distance, rounding in zip(clipper.thresholds, distances, own, strict=True)
    )


def kept(*roots: object) -> Counter[tuple[str, str, object]]:
    """Count the values that some objects lead to and that may hold something of a batch.

    A loss with a memory of earlier batches couples records, perhaps only once the memory is full,
    which no comparison of losses before the first step shows. The growth of the memory does show.

    Returns:
        Counts by (holder, type, length or sums of bits): of tensors and arrays, and of containers,
        wherever attributes, closures, classes and global variables of functions lead. Parameters,
        single numbers, texts and objects of libraries, with the buffers that a sharded model keeps,
        are left out.
    """
    found: Counter[tuple[str, str, object]] = Counter()
    pending: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    seen: dict[int, object] = {}  # holds what it has seen, so that no other object gets its id
    while pending:
        holder, value = pending.pop()
        if id(value) in seen or isinstance(value, nn.Parameter | types.ModuleType):
            continue
        seen[id(value)] = value
        kind = type(value).__name__
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            value = torch.tensor(value)  # a copy: an array may be read-only
        if isinstance(value, Tensor):
            found[holder, kind, (tuple(value.shape), *bit_sums(value).tolist())] += 1
        elif isinstance(value, types.FunctionType) and not _of_library(value):
            used = [value.__globals__.get(name) for name in value.__code__.co_names]
            outside = (*used, value.__closure__, value.__defaults__, value.__kwdefaults__)
            pending += [(value.__qualname__, part) for part in outside]
        elif isinstance(value, _HOLDERS) or not _of_library(value):
            if isinstance(value, _CONTAINERS):
                found[holder, kind, len(value)] += 1
            else:
                holder = getattr(value, "__qualname__", kind)
            parts = gc.get_referents(value)[:_ITEMS]
            pending += [(holder, part) for part in parts if not isinstance(part, _PLAIN)]
    return found


def _of_library(value: Any) -> bool:
    """Return whether the search stops at an object: its class or function is a library's."""
    named = value if isinstance(value, type | types.FunctionType) else type(value)
    name = named.__module__ or "builtins"
    return name.partition(".")[0] in _LIBRARIES or name.startswith("dpft.privacy.")
