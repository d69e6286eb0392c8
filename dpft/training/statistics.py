"""Noiseless figures of one training step, logged under ``private/`` only; and its divergence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpft.config.errors import DivergedError, TrainingError
from dpft.parallel.cohort import TrainingCohort, own_part
from dpft.privacy import Clipper
from dpft.privacy.noise import GaussianNoise, Released


@dataclass
class StepStatistics:
    """The figures of one step's records in this process.

    Attributes:
        share: number of the share of the batch; the ranks of one pipeline have the same, which
            counts once. None: the rank has a separate share.
        groups: numbers of the clipping groups of ``norms`` and ``factors``; None: all groups.
        left_out: records whose loss was not finite.
        norms: per microbatch ``(b, K)``, as are ``factors``.
        finite: per microbatch of a program, whether all its losses and norms are finite.
        signal: norm of the mean clipped gradient before noise; only for watched steps.
        noise: root of the expected squared norm of the noise; only for watched steps.
    """

    share: int | None = None
    groups: Sequence[int] | None = None
    records: int = 0
    left_out: int = 0
    microbatches: int = 0
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    factors: list[Tensor] = field(default_factory=list)
    finite: list[Tensor] = field(default_factory=list)
    released: Released = field(default_factory=Released)
    signal: float | None = None
    noise: float | None = None
    seconds: float = 0.0

    def observe(self, losses: Tensor, norms: Tensor, factors: Tensor, records: int) -> None:
        """Add a microbatch of ``records`` records, of which ``losses`` may have fewer."""
        self.records += records
        self.microbatches += 1
        self.losses.append(losses.detach())
        self.left_out += records - len(losses)
        if norms.shape[1]:  # there are clipping groups
            self.norms.append(norms)
            self.factors.append(factors)

    def measure_signal(self, clipper: Clipper, batch_size: int) -> None:
        """Set ``signal`` from the sums in ``.grad``, before noise is added."""
        sums = [p.grad for p in clipper.parameters.values() if p.grad is not None]
        norms = [float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in sums]
        self.signal = math.hypot(*norms) / batch_size

    def measure_noise(self, clipper: Clipper, noise: GaussianNoise) -> None:
        """Set ``noise`` from the standard deviations of the step's noise, once it was added."""
        named = clipper.parameters.items()
        squares = (p.numel() * noise.deviations[name] ** 2 for name, p in named)
        self.noise = math.sqrt(math.fsum(squares))

    def summary(self, cohort: TrainingCohort | None = None) -> dict[str, Any]:
        """Return the figures of the whole batch; ``loss`` is None where the batch was empty."""
        shares: dict[int, list[float]] = {}
        groups: dict[int, list[list[float]]] = {}
        gathered = (cohort or TrainingCohort()).all_gather((self.share, *self._sums()))
        for rank, (share, counts, own) in enumerate(gathered):
            key = rank if share is None else share
            # Ranks of one share count the same, but for records that one stage has dropped.
            shares[key] = [*map(max, counts, shares.get(key, counts))]
            for group, numbers in own:
                groups.setdefault(group, []).append(numbers)
        records, dropped, microbatches, seen, losses = map(sum, zip(*shares.values(), strict=True))
        out: dict[str, Any] = {
            "records": records,
            "dropped": dropped,
            "microbatches": microbatches,
            "loss": losses / seen if seen else None,
            "seconds": self.seconds,
        }
        if groups:
            sums = [list(zip(*groups[group], strict=True)) for group in sorted(groups)]
            out["norm_mean"] = [math.fsum(norms) / seen for norms, _ in sums]
            out["clipped"] = [sum(clipped) / seen for _, clipped in sums]
        if self.released.thresholds:
            out["clip_thresholds"] = list(self.released.thresholds)
        return out

    def norms_of_all(self, cohort: TrainingCohort) -> list[Tensor]:
        """Return norms ``(b, K)`` of every share that has records; all ranks must call this."""
        columns: dict[int, dict[int, list[float]]] = {}
        mine = torch.cat(self.norms).T.tolist() if self.norms else []
        gathered = cohort.all_gather((self.share, self.groups, mine))
        for rank, (share, groups, norms) in enumerate(gathered):
            numbers = range(len(norms)) if groups is None else groups
            found = columns.setdefault(rank if share is None else share, {})
            found.update(zip(numbers, norms, strict=False))  # a share may be empty
        return [
            torch.tensor([found[group] for group in sorted(found)], dtype=torch.float64).T
            for found in columns.values()
            if any(found.values())
        ]

    def _sums(self) -> tuple[list[float], list[tuple[int, list[float]]]]:
        """Return counts of records, dropped records, microbatches and losses, and their sum.

        And for each group its number with the sum of norms and the clipped records.
        """
        dropped, seen, total = self.left_out, 0, 0.0
        groups: list[tuple[int, list[float]]] = []
        if self.losses:
            losses = torch.cat(self.losses)
            # Where the clipper drops records, losses that are not finite are among them.
            seen, figures = len(losses), [losses.nan_to_num(0.0, 0.0, 0.0).sum()]
            if self.norms and seen:
                norms, factors = torch.cat(self.norms), torch.cat(self.factors)
                clipped = (factors < 1).sum(0).to(norms.dtype)
                zeroed = (factors == 0).any(1).sum()
                figures += [zeroed, torch.stack([norms.sum(0), clipped], 1)]
            # One transfer, since the host waits for each.
            flat = [x.to(losses.device, torch.float64).flatten() for x in figures]
            total, *others = torch.cat(flat).tolist()
            if others:
                dropped += int(others.pop(0))
                own = range(len(others) // 2) if self.groups is None else self.groups
                groups = [(k, others[2 * n : 2 * n + 2]) for n, k in enumerate(own)]
        return [self.records, dropped, self.microbatches, seen, total], groups


@torch.no_grad()
def check_weights(
    optimizer: torch.optim.Optimizer, step: int, agreed: Callable[[bool], bool] | None = None
) -> None:
    """Raise DivergedError for weights that are not finite. They are released, so this is public."""
    moved = [own_part(p) for group in optimizer.param_groups for p in group["params"]]
    # Without stages that other ranks check, and empty parts.
    moved = [part for part in moved if part.numel() and not part.is_meta]
    # One transfer for all, since the host waits for each; the largest number shows any other.
    finite = not moved or torch.stack(torch._foreach_norm(moved, math.inf)).isfinite().all()
    if (agreed or bool)(not bool(finite)):
        raise DivergedError(
            f"the weights are not finite after step {step}; expected finite numbers. Type a "
            "smaller learning rate, which is another run; what this one spent stays in its ledger"
        )


def check_gradients(clipper: Clipper, step: int, agreed: Callable[[bool], bool] | None) -> None:
    """Raise TrainingError for gradients that are not finite: for training without privacy."""
    grads = {n: own_part(p.grad) for n, p in clipper.parameters.items() if p.grad is not None}
    finite, wrong = [torch.isfinite(grad).all() for grad in grads.values()], list[str]()
    if finite and not bool(torch.stack(finite).all()):  # the host waits once for all
        wrong = [name for name, one in zip(grads, finite, strict=True) if not one]
    if (agreed or bool)(bool(wrong)):  # ranks may hold other parameters
        raise TrainingError(
            f"the gradient of {[*wrong, 'a parameter elsewhere'][0]} is not finite at step {step}; "
            "expected finite numbers. Type a smaller optim.lr; the last checkpoint is kept"
        )
