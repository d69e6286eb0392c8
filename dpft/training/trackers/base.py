"""What a tracker is, and which figures it is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dpft.config.schema import Run
from dpft.privacy import Mechanism
from dpft.privacy.guarantee import VOIDS, Void


@dataclass(frozen=True)
class Begun:
    """What a tracker is told at first.

    Attributes:
        name: of the run.
        project: under which runs stand together.
        folder: for its files: under ``private/`` where it is given noiseless figures.
        settings: of the run, those that tell nothing of the data.
        start: the step to go on with; what was tracked of it and of later ones is not true.
    """

    name: str
    project: str
    folder: Path
    settings: Mapping[str, Any]
    start: int


class Tracker(Protocol):
    """Takes figures of a run."""

    def begin(self, run: Begun) -> None:
        """Before the first step."""
        ...

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """After a step, counted from 1; 0: before the first. An evaluation brings further names."""
        ...

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        """After a split was scored; on the scales that scores are shown on."""
        ...

    def end(self) -> None:
        """The run is done, or was stopped."""
        ...


class Guarded:
    """A tracker that fails without harm.

    Args:
        tracker: None: nothing is tracked.
        warn: told once, and nothing is tracked from then on.
        begun: what the tracker is told at first, given the step to go on with.
    """

    def __init__(
        self,
        tracker: Tracker | None,
        warn: Callable[[str], None],
        begun: Callable[[int], Begun] | None = None,
    ) -> None:
        self._tracker = tracker
        self._warn = warn
        self._begun = begun
        self._going = False

    @property
    def tracks(self) -> bool:
        """Whether anybody takes figures: they cost something to compute."""
        return self._tracker is not None

    def begin(self, start: int) -> None:
        """As the methods of `Tracker`."""
        self._going = True
        if self._begun is not None:
            self._call("begin", self._begun(start))

    def step(self, step: int, values: Mapping[str, float]) -> None:
        self._call("step", step, values)

    def scores(self, split: str, values: Mapping[str, float]) -> None:
        self._call("scores", split, values)

    def end(self) -> None:
        self._call("end")
        self._tracker = None

    def _call(self, method: str, *arguments: Any) -> None:
        if self._tracker is None or not self._going:
            return
        try:
            getattr(self._tracker, method)(*arguments)
        except Exception as error:  # whatever a service's library raises: training goes on
            self._tracker = None
            self._warn(
                f"the tracker failed ({type(error).__name__}: {str(error)[:200]}); the run goes on "
                "without it"
            )


@dataclass(frozen=True)
class Figures:
    """What is tracked of a step.

    Args:
        mechanism: of the run.
        private: whether noiseless figures are among it.
        groups: names of the clipping groups, in order.
        voided_by: what voids the guarantee of the run.
    """

    mechanism: Mechanism
    private: bool
    groups: tuple[str, ...] = ()
    voided_by: tuple[Void, ...] = ()

    def of_step(
        self, step: int, rate: float, thresholds: tuple[float, ...], summary: Mapping[str, Any]
    ) -> dict[str, float]:
        """Figures after step ``step``, counted from 0, by name.

        Args:
            step: the step.
            rate: learning rate.
            thresholds: that its noise was scaled to, from noisy counts; none if there is no noise.
            summary: see `dpft.training.loop.StepStatistics.summary`.
        """
        values = {"learning_rate": rate}
        if self.mechanism.noise_multiplier:
            # A column stands alone, so its name has what voids its figures.
            name = ", ".join(["epsilon", *(VOIDS[reason] for reason in self.voided_by)])
            values[re.sub(r"\W+", "_", name)] = self.mechanism.epsilon_after(step + 1)
            values["noise_multiplier"] = self.mechanism.noise_multiplier
        whole = len(self.groups) == len(thresholds)
        named = self.groups if whole else map(str, range(len(thresholds)))
        values |= {
            f"threshold/{name}": value for name, value in zip(named, thresholds, strict=True)
        }
        if self.private or not self.mechanism.noise_multiplier:
            values |= {
                f"train/{name}": float(value)
                for name, value in summary.items()
                if isinstance(value, int | float)
            }
        return values


def public_settings(run: Run) -> dict[str, Any]:
    """Settings of a run by their dotted names, without any that name the data or a folder."""
    raw = run.raw
    found: dict[str, Any] = {"task": run.task["name"], "model": run.model.name, "seed": run.seed}
    found |= {"adapt": run.adapt.name, "clip": run.clip.style}
    for group in ("optim", "privacy", "decode"):
        found |= {f"{group}.{key}": value for key, value in dict(raw[group]).items()}
    found.pop("privacy.noise_seed", None)
    return found
