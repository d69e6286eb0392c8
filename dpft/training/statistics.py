"""Figures of one training step. They are noiseless, so they are logged under ``private/`` only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpft.parallel.cohort import SingleProcess, TrainingCohort
from dpft.privacy.noise import Released


@dataclass
class StepStatistics:
    """The figures that this process has seen of one step.

    Attributes:
        share: number of the share of the batch; the ranks of one pipeline have the same, which
            counts once. None: the rank has a share of its own.
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

    @property
    def dropped(self) -> int:
        """Records of this process that contributed zero, since they were not finite."""
        return self.left_out + sum(int((one == 0).any(1).sum()) for one in self.factors)

    def summary(self, cohort: TrainingCohort | None = None) -> dict[str, Any]:
        """Return the figures of the whole batch; ``loss`` is None where the batch was empty."""
        shares: dict[int, list[float]] = {}
        groups: dict[int, list[list[float]]] = {}
        gathered = (cohort or SingleProcess()).gather((self.share, *self._sums()))
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
            out["norm_mean"] = [math.fsum(norms) / seen for norms, _, _ in sums]
            out["norm_max"] = [max(largest) for _, _, largest in sums]
            out["clipped"] = [sum(clipped) / seen for _, clipped, _ in sums]
        if self.released.thresholds:
            out["clip_thresholds"] = list(self.released.thresholds)
        return out

    def norms_of_all(self, cohort: TrainingCohort) -> list[Tensor]:
        """Return norms ``(b, K)`` of every share that has records; all ranks must call this."""
        columns: dict[int, dict[int, list[float]]] = {}
        mine = torch.cat(self.norms).T.tolist() if self.norms else []
        gathered = cohort.gather((self.share, self.groups, mine))
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
        """Return numbers that ranks can add up.

        Returns:
            Records, dropped records, microbatches, losses, their sum; and for each group its
            number with the sum of norms, the number of clipped records and the largest norm.
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
                figures += [zeroed, torch.stack([norms.sum(0), clipped, norms.amax(0)], 1)]
            # One transfer, since the host waits for each.
            flat = [x.to(losses.device, torch.float64).flatten() for x in figures]
            total, *others = torch.cat(flat).tolist()
            if others:
                dropped += int(others.pop(0))
                own = range(len(others) // 3) if self.groups is None else self.groups
                groups = [(k, others[3 * n : 3 * n + 3]) for n, k in enumerate(own)]
        return [self.records, dropped, self.microbatches, seen, total], groups
