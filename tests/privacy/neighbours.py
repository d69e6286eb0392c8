"""Two runs on neighbouring data sets under the same randomness, and what differs between them.

The method is that of Re:cord-play (Cebere et al. 2026). All keys are replaced by one, so that both
runs draw the same records and the same noise. The first run also draws the extra record at every
step, the second never does. The second run continues from the releases of the first: each of its
releases is compared, and then replaced by the recorded one. So both runs have the same weights and
thresholds at every step, as adaptive composition assumes.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dpft.privacy import keys
from dpft.privacy.noise import GaussianNoise
from dpft.privacy.sampling import PoissonSampler

TOLERANCE = 1e-4
"""Of the sensitivity. In float32, the order of the records, the padding and the microbatches change
the sum of the other records by about 1e-5 of the threshold for each record (see `Clipper`)."""


@dataclass
class Pair:
    """What two runs show: the first with the extra record, the second without it.

    Attributes:
        ends: for each run, the type of the error that it ended with, or "no error".
        seen: the public values of each run.
        releases: for each step of the first run, noisy sums and counts in units of their noise.
        policies: the first run's state of the threshold policy after each step.
        moved: for each step of the second run, the distance of its release from the first run's,
            in units of the sensitivity.
        cut: the steps whose batch was cut to a size. There the extra record may replace another
            one, and the accountant allows for twice the sensitivity.
    """

    ends: list[str] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)
    releases: list[dict[str, Tensor]] = field(default_factory=list)
    policies: list[dict[str, Any]] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)

    @property
    def most(self) -> float:
        return max(self.moved, default=0.0)

    def differences(self) -> list[str]:
        """What differs, in words; nothing if the runs are equal."""
        if set(self.ends) != {"no error"}:
            also = "" if self.ends[1] == "no error" else f", without it {self.ends[1]}"
            return [f"stops after {len(self.releases)} steps: {self.ends[0]}{also}"]
        first, second = self.seen
        found = [f"{name} differs" for name in first if first[name] != second[name]]
        if len(self.moved) != len(self.releases):
            found.append(f"{len(self.releases)} steps, without it {len(self.moved)}")
        for step, moved in enumerate(self.moved):
            if not moved <= (2 if step in self.cut else 1) + TOLERANCE:
                found.append(f"the release of step {step} differs by {moved:.4f}")
        return found

    def released(self, noise: Any, step: int, fractions: Sequence[float]) -> None:
        """Keep a release of the first run; compare one of the second, and replace it."""
        clipper, mechanism, stds = noise._clipper, noise._mechanism, noise.deviations
        values = {name: p.grad.double() / stds[name] for name, p in clipper.parameters.items()}
        if fractions:
            counts = torch.tensor(fractions, dtype=torch.float64) * mechanism.batch_size
            values["counts"] = counts / mechanism.count_noise
        if not self.ends:
            self.releases.append(values)
            self.policies.append(clipper.policy.state())
        elif step < len(self.releases):
            first = self.releases[step]
            apart = (float((x - first[name]).norm()) for name, x in values.items())
            self.moved.append(math.hypot(*apart) * mechanism.total_noise_multiplier)
            for name, parameter in clipper.parameters.items():
                parameter.grad.copy_(first[name] * stds[name])
            clipper.policy.restore(self.policies[step])


Entry = Callable[[str, bool, Path], dict[str, Any]]
"""Trains with or without the extra record, in a folder; returns what an observer may see."""


def compared(entry: Entry, condition: str, folder: Path, sole: int | None) -> Pair:
    """Train with the extra record, which is the last one, and then without it.

    ``condition`` says what is odd about it, and ``sole`` names a step whose batch is that record
    alone, and empty without it.
    """
    privatise, drawn, derive = GaussianNoise.privatise_, PoissonSampler.batch, keys.derive
    pair = Pair()

    def batch(sampler: Any, step: int) -> list[int]:
        *others, extra = sorted({*drawn(sampler, step), sampler._size - 1})
        if step == sole:
            others = []
        if len(others) >= (getattr(sampler, "_places", None) or math.inf):
            pair.cut.add(step)
        return others if pair.ends else [*others, extra]

    def privatise_(noise: Any, step: int) -> Any:
        released = privatise(noise, step)
        pair.released(noise, step, released.fractions)
        return released

    for present in (True, False):
        (folder / "run").mkdir(parents=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keys, "derive", lambda key, *labels: derive(b"the same", *labels))
            patch.setattr(PoissonSampler, "batch", batch)
            patch.setattr(GaussianNoise, "privatise_", privatise_)
            torch.manual_seed(0)
            try:
                seen, end = entry(condition, present, folder / "run"), "no error"
            except Exception as error:
                seen, end = {}, type(error).__name__
        pair.seen.append(seen)
        pair.ends.append(end)
        shutil.rmtree(folder / "run")
    return pair
