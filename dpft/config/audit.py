"""``conf/audit``: which canaries a run carries. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dpft.config.checks import Bounds, Count, Positive, Share
from dpft.config.flags import Flag, Stored, flag

_Number = Annotated[int, Bounds(least=0, most=1e6)]  # scores of canaries are arrays in memory


@dataclass(frozen=True)
class Audit:
    """Canaries of a run; all numbers zero: none.

    Attributes:
        gradients: canaries that are gradients, see `dpft.audit.gradients`.
        records: canaries that are pairs of records, see `dpft.audit.records`.
        weight: their losses are multiplied by it, so that clipping has something to do.
        confidence: of the lower bound on epsilon.
        secrets: texts whose exposure is measured, see `dpft.audit.exposure`.
        repetitions: how often each of them is put into the training data.
        candidates: other texts that each secret's likelihood is compared with, to which a
            distribution is fitted.
    """

    gradients: _Number = 0
    records: _Number = 0
    weight: Positive = 1000.0
    confidence: Share = 0.95
    secrets: _Number = 0
    repetitions: Count = 1
    candidates: Annotated[int, Bounds(least=100, most=1e6)] = 1000

    @property
    def slots(self) -> int:
        """Places beside the real records that a canary is in or not."""
        return self.gradients + self.records

    @property
    def planted(self) -> int:
        """How many records the secrets add to the training data."""
        return self.secrets * self.repetitions

    @property
    def canaries(self) -> int:
        """How many more units of privacy the run has than its data."""
        return self.planted + self.slots

    @property
    def active(self) -> bool:
        """Whether the run carries any canary."""
        return bool(self.slots or self.secrets)

    def flags(self) -> list[Stored]:
        """Return what is special about a run with these canaries."""
        flags = []
        if self.slots:
            flags.append(flag(Flag.CANARIES, count=self.slots))
        if self.secrets:
            flags.append(flag(Flag.CANARY_TEXTS, count=self.secrets, repetitions=self.repetitions))
        return flags

    def caveats(self, noun: str) -> list[str]:
        """What must be said with the guarantee of the run.

        Args:
            noun: of one unit of privacy, such as ``record``.
        """
        caveats = []
        if self.secrets and self.repetitions > 1:
            caveats.append(
                f"epsilon is for one {noun}, and each of the {self.secrets} secrets is in the data "
                f"{self.repetitions} times: it has the influence of {self.repetitions} {noun}s, "
                "which epsilon does not cover"
            )
        if self.slots:
            caveats.append(
                "the audit's figures (right guesses, epsilon spent at least) are computed from the "
                "noise itself, which is no part of the release, so that no epsilon covers them: "
                "leave them out wherever all that is published must be covered"
            )
        return caveats
