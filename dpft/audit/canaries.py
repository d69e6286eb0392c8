"""Canaries in separate slots: coins decide which are in the run, and steps score each.

A guarantee for adding or removing one record holds for the worst record and against an observer who
knows everything else. So do these tests: the sum of the real records is known and subtracted.
*Gradient* canaries have one coordinate of each clipping group, where their size is that group's
threshold. They show noise that is missing, far too small or the same at every step, sampling at
another rate, and thresholds that differ from the noise's. *Record* canaries go through model and
clipping as every record does, and show clipping that is missing or exceeds its threshold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpft.config.errors import ConfigError
from dpft.privacy import keys, microbatches
from dpft.privacy.policies import QuantileThresholds
from dpft.privacy.precision import full_precision
from dpft.tasks.objectives.evaluation import evaluating
from dpft.tasks.objectives.records import LabelledImage, LabelledText, Record, TextRecord
from dpft.tasks.units import UnitBatch, finite_losses

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.privacy import Clipper, Mechanism
    from dpft.privacy.shapes import FixedShapes
    from dpft.tasks.base import Task
    from dpft.tasks.objectives.base import Losses, Objective

Array = npt.NDArray[np.float64]

_STATE = ("total", "lowest", "highest")
_STEP = 1e-3  # of the weights' norm, to either side of a slope: smaller ones drown in rounding
_WORDS = 12  # tokens of a canary's text


class Canaries(ABC):
    """One kind of canaries.

    Each step gives every canary a value, which is larger where the release suggests the canary. Two
    rules make scores of them. Their *sum* is right where noise is fresh. Noise that is the same at
    several steps grows in the sum as the signal does; their *range* is then free of it, while an
    included canary is in some steps and not in others.

    Attributes:
        included: whether each is in the run, shape (m,); secret.
        total, lowest, highest: of the values of all steps, shape (m,).
    """

    def __init__(self, count: int, generator: np.random.Generator) -> None:
        self.included: npt.NDArray[np.bool_] = generator.random(count) < 0.5
        self.total: Array = np.zeros(count)
        self.lowest: Array = np.full(count, np.inf)
        self.highest: Array = np.full(count, -np.inf)

    def __len__(self) -> int:
        return len(self.included)

    @abstractmethod
    def insert(self, slots: Sequence[int]) -> None:
        """Put the included canaries of a step's sampled slots into its sums, before noise."""

    @abstractmethod
    def observe(self) -> None:
        """`add` what the step released, before the weights move."""

    def add(self, values: Array, summands: Array | None = None) -> None:
        """Add a step's value of each canary, shape (m,), and its summand."""
        self.total += values if summands is None else summands
        self.lowest = np.minimum(self.lowest, values)
        self.highest = np.maximum(self.highest, values)

    @property
    def scores(self) -> dict[str, Array]:
        """Scores by both rules, each of shape (m,); without a step, all zero."""
        seen = self.highest >= self.lowest
        return {
            "sum": self.total,
            "range": np.subtract(self.highest, self.lowest, out=np.zeros(len(self)), where=seen),
        }

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; all else follows from the key.

        Noiseless: a release less a gradient canary's value is the real records' sum.
        """
        return {name: getattr(self, name).tolist() for name in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for name in _STATE:
            setattr(self, name, np.array(state[name], dtype=np.float64))


class GradientCanaries(Canaries):
    """``m`` canaries on separate coordinates (Steinke et al. 2023, section 6: Dirac canaries).

    Guarantee: an included canary adds to a step's sum a vector of norm ``sensitivity``, and counts
    as a norm at its threshold, as a record that the mechanism accounts for may.
    """

    def __init__(self, count: int, clipper: Clipper, mechanism: Mechanism, key: bytes) -> None:
        generator = keys.generator(key, "audit", "gradients")
        super().__init__(count, generator)
        self._clipper, self._mechanism = clipper, mechanism
        # In each group coordinates of the largest parameter, each as seldom as possible.
        self._places: list[tuple[str, Tensor]] = []
        for group in clipper.groups:
            name = max(group.parameters, key=lambda name: clipper.parameters[name].numel())
            size = clipper.parameters[name].numel()
            if count <= size:
                places = generator.choice(size, count, replace=False).astype(np.int64)
            else:
                rounds = [generator.permutation(size) for _ in range(-(-count // size))]
                places = np.concatenate(rounds)[:count].astype(np.int64)
            self._places.append((name, torch.from_numpy(places)))
        self._before: list[Tensor] = []
        self._scales: list[tuple[float, float]] = []

    @torch.no_grad()
    def insert(self, slots: Sequence[int]) -> None:
        clipper = self._clipper
        sampled = [slot for slot in slots if self.included[slot]]
        stds = self._mechanism.noise_stds(clipper.thresholds)
        self._scales = list(zip(clipper.thresholds, stds, strict=True))
        self._before = []
        for (name, places), threshold in zip(self._places, clipper.thresholds, strict=True):
            parameter = clipper.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            flat = parameter.grad.view(-1)
            places = places.to(flat.device)
            self._before.append(flat[places].double())
            here = places[sampled]
            flat.index_add_(0, here, torch.full_like(here, threshold, dtype=flat.dtype))
        if isinstance(clipper.policy, QuantileThresholds):
            # A norm at its threshold is counted as one below, centred as all counts are.
            clipper.policy.below += 0.5 * len(sampled)

    @torch.no_grad()
    def observe(self) -> None:
        """Value a release by the likelihood of a canary in it.

        A step's value is ``sum_k <released_k - known_k, canary_k> C_k / std_k^2``: less half of
        ``sum_k C_k^2 / std_k^2`` it is the log-likelihood ratio of a step with the canary against
        one without. A canary is in a step at the sampling rate ``q`` only, so the summand is
        ``log(1 - q + q e^ratio)``, the best score by Neyman and Pearson. Without noise there is no
        likelihood: the value is ``sum_k <released_k - known_k, canary_k>``.
        """
        total = np.zeros(len(self))
        half, noisy = 0.0, True
        for (name, places), known, (threshold, std) in zip(
            self._places, self._before, self._scales, strict=True
        ):
            grad = self._clipper.parameters[name].grad
            assert grad is not None
            released = grad.view(-1)[places.to(grad.device)].double() * self._mechanism.batch_size
            weight = threshold / std**2 if std > 0 else threshold
            total += weight * (released - known).cpu().numpy()
            half += weight * threshold / 2
            noisy = noisy and std > 0
        if not noisy:
            self.add(total)
            return
        rate = self._mechanism.sampling_rate
        with np.errstate(divide="ignore"):  # at rate 1 no step is without the canary
            likelihood = np.logaddexp(np.log1p(-rate), np.log(rate) + total - half)
        self.add(total, likelihood)


class RecordCanaries(Canaries):
    """``m`` canaries from generated records, scored by their gradients' part in a release.

    A canary is two records of noise, and its loss is the one's less the other's: the part that all
    such records share cancels, so that gradients of canaries differ. That loss is multiplied by a
    large number, which clipping makes vanish. A value is the slope of the canary's loss along the
    release less the real records' sum: the difference of two losses, at weights to either side.

    Guarantee: an included canary is a unit of the run like any other: its loss depends on nothing
    else, and its gradient is clipped by the run's own clipper.
    """

    def __init__(
        self,
        records: Sequence[Record],
        objective: Objective,
        model: nn.Module,
        clipper: Clipper,
        *,
        batch_size: int,
        weight: float,
        token_budget: int,
        key: bytes,
    ) -> None:
        examples = [objective.encode(record) for record in records]
        self._pairs = Pairs(objective, examples, weight)
        super().__init__(len(self._pairs), keys.generator(key, "audit", "records"))
        self._model, self._clipper = model, clipper
        self._batch_size, self._token_budget = batch_size, token_budget
        self._device = next(model.parameters()).device
        self._known: dict[str, Tensor] = {}

    def insert(self, slots: Sequence[int]) -> None:
        self._known = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in self._clipper.parameters.items()
        }
        chosen = [slot for slot in slots if self.included[slot]]
        for piece in self._pairs.microbatches(chosen, self._token_budget):
            batch = self._pairs.batch(piece, 0).to(self._device)
            with full_precision():
                losses, batch = finite_losses(self._pairs, self._model, batch)
                self._clipper.backward(losses, rows=batch.rows_per_unit, real=batch.real)

    @torch.no_grad()
    def observe(self) -> None:
        """Value each canary by the slope of its loss along the step's release."""

        def norm(tensors: Iterable[Tensor]) -> float:
            return float(torch.stack([t.double().square().sum() for t in tensors]).sum().sqrt())

        parameters, direction = self._clipper.parameters, {}
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            direction[name] = (parameter.grad * self._batch_size - self._known[name]).float()
        self._known = {}
        length, size = norm(direction.values()), norm(parameters.values())
        if not 0 < length < np.inf:
            return
        step = _STEP * size / length
        here = {name: parameter.clone() for name, parameter in parameters.items()}
        ends = []
        for sign in (1, -1):
            for name, parameter in parameters.items():
                parameter.copy_(here[name] + sign * step * direction[name])
            ends.append(self._losses())
        for name, parameter in parameters.items():
            parameter.copy_(here[name])
        slopes = (ends[0] - ends[1]) / (2 * _STEP * size)
        self.add(np.where(np.isfinite(slopes), slopes, 0.0))

    def _losses(self) -> Array:
        out = np.zeros(len(self))
        with self._clipper.paused(), evaluating(self._model):
            for piece in self._pairs.microbatches(range(len(self)), self._token_budget):
                batch = self._pairs.batch(piece, 0).to(self._device)
                out[piece] = self._pairs.losses(self._model, batch).double().cpu().numpy()
        return out


class Pairs:
    """Units of two records each; a unit's loss is ``weight`` times the difference of theirs."""

    def __init__(self, objective: Losses, examples: Sequence[Any], weight: float) -> None:
        self._objective = objective
        self._pairs = [tuple(examples[i : i + 2]) for i in range(0, len(examples), 2)]
        self.lengths = np.array([2 * max(a.length, b.length) for a, b in self._pairs], np.int64)
        self._weight = weight
        self.shapes: FixedShapes | None = None

    def __len__(self) -> int:
        return len(self._pairs)

    def microbatches(self, indices: Sequence[int], token_budget: int) -> list[list[int]]:
        return microbatches(indices, self.lengths, token_budget)

    def batch(self, indices: Sequence[int], step: int) -> UnitBatch:
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
        weights = (self._weight * signs).repeat(len(indices), 1)
        rows = [row for i in indices for row in self._pairs[i]]
        return UnitBatch(self._objective.collate(rows), weights)

    def losses(self, model: nn.Module, batch: UnitBatch) -> Tensor:
        rows = self._objective.losses(model, batch.batch).view_as(batch.weights)
        return (rows * batch.weights.to(rows.dtype)).sum(1)


def canary_records(
    task: Task, loaded: LoadedModel, like: Record, count: int, key: bytes
) -> list[Record]:
    """Return ``2 * count`` records of noise, random words or pixels, in the form of ``like``.

    Only the form of the task's records is used: a canary made of one would double that record's
    influence. The secret ``key`` decides which they are. Raises ConfigError for unknown kinds.
    """
    generator = keys.generator(key, "audit", "canary records")
    classes = max(len(getattr(task, "classes", ())), len(task.needs.classes), 2)

    def words() -> str:
        tokenizer = loaded.text_tokenizer
        return str(tokenizer.decode(generator.integers(len(tokenizer), size=_WORDS).tolist()))

    def label() -> int:
        return int(generator.integers(classes))

    def one() -> Record:
        if isinstance(like, TextRecord):
            return TextRecord(tuple(words() for _ in like.segments[:1]), words())
        if isinstance(like, LabelledText):
            return LabelledText(tuple(words() for _ in like.texts), label())
        if isinstance(like, LabelledImage) and loaded.image is not None:
            shape = (loaded.image.size, loaded.image.size, 3)
            pixels = generator.integers(256, size=shape, dtype=np.uint8)
            return LabelledImage(pixels, label(), "a canary")
        raise ConfigError(
            f"audit.records is {count}, but records of type {type(like).__name__} are of no kind "
            "that canaries are made of; type audit.records=0 audit.gradients=1000"
        )

    return [one() for _ in range(2 * count)]
