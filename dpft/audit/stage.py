"""The audit of a run: plant canaries before training, observe steps, measure after it.

``docs/how-to/audit.md`` explains what each kind of canaries can show and what it cannot.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpft.audit.bound import lower_bound
from dpft.audit.canaries import Canaries, GradientCanaries, RecordCanaries, canary_records
from dpft.audit.exposure import Planted, make_secrets
from dpft.config.errors import ConfigError
from dpft.privacy import UnsupportedLayerError
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile

if TYPE_CHECKING:
    from dpft.config.schema import Run
    from dpft.models.load import LoadedModel
    from dpft.privacy import Clipper, Mechanism
    from dpft.tasks.base import Task
    from dpft.tasks.objectives.base import Objective
    from dpft.tasks.objectives.records import Record

# Epsilons of the profile: close together where deltas are large, up to what guesses can refute.
_EPSILONS = np.concatenate([np.linspace(0, 8, 81), np.geomspace(8.2, 80, 40)])


class Auditor:
    """Slots that are sampled like records, after the last unit.

    An excluded canary's slot is sampled as well and adds nothing: the mechanism does not depend on
    the coins, as the bound requires.
    """

    def __init__(self, parts: Mapping[str, Canaries]) -> None:
        self.parts = dict(parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def insert(self, slots: Sequence[int]) -> None:
        """Add the canaries of the sampled slots, from 0 over all kinds, to the step's sums."""
        first = 0
        for part in self.parts.values():
            part.insert([slot - first for slot in slots if first <= slot < first + len(part)])
            first += len(part)

    def observe(self) -> None:
        """Score the canaries by the step's release, before the weights move."""
        for part in self.parts.values():
            part.observe()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; noiseless, so it belongs under ``private/``."""
        return {name: part.state() for name, part in self.parts.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        for name, part in self.parts.items():
            part.restore(state[name])

    def result(self, mechanism: Mechanism, *, confidence: float, epsilon: float) -> dict[str, Any]:
        """Return the record's section: the largest bound of any kind, and whether it refutes.

        Args:
            mechanism: of the run: what it claims, and what it would claim with other noise.
            confidence: of all kinds' bounds together.
            epsilon: the least upper bound that the run claims, at the mechanism's delta.
        """
        each = 1 - (1 - confidence) / len(self.parts)

        @functools.cache
        def claim(noise_multiplier: float) -> tuple[float, PrivacyProfile]:
            """Return the run's claim if all releases of a step had this noise multiplier."""
            if not mechanism.steps:
                return 0.0, PrivacyProfile(np.zeros(1), np.zeros(1))
            losses = LossDistribution(
                sampling_rate=mechanism.sampling_rate,
                noise_multiplier=noise_multiplier,
                steps=mechanism.steps,
            )
            return losses.epsilon(mechanism.delta), losses.profile(_EPSILONS)

        bounds = {
            name: lower_bound(part.scores, part.included, claim, confidence=each)
            for name, part in self.parts.items()
        }
        lower = max(bound["epsilon"] for bound in bounds.values())
        return {
            "epsilon_lower": lower,
            "delta": mechanism.delta,
            "confidence": confidence,
            "refuted": lower > epsilon,
            "parts": bounds,
        }


class Stage:
    """The audit of a run; raises ConfigError for one that means nothing for this run."""

    def __init__(self, run: Run, task: Task) -> None:
        self._run, self._task = run, task
        audit, noun = run.audit, task.unit_noun
        typed = f"audit.gradients={audit.gradients} audit.records={audit.records}"
        typed += f" audit.secrets={audit.secrets}"
        other = "type audit.records=0 audit.gradients=1000"
        for wrong, why in (
            (
                audit.slots and not run.clip.private,
                "clip=none, which guarantees nothing that could be refuted; type audit=none",
            ),
            (
                audit.records and run.precision != "float32",
                f"precision={run.precision}, which rounds the slopes that record canaries are "
                f"recognised by; {other}, or precision=float32",
            ),
            (
                audit.records and run.adapt.name == "rgp",
                "adapt=rgp: a loss does not change with the carriers, whose gradients are "
                f"released, so that no record canary could be recognised; {other}",
            ),
            (
                audit.slots and run.privacy.sampling != "poisson",
                f"sampling={run.privacy.sampling}, which claims no epsilon that canaries could "
                "refute, or another one; type sampling=poisson",
            ),
            (
                (audit.records or audit.secrets) and noun != "record",
                f"{noun}s as units of privacy: records and secrets are single records; {other} "
                "audit.secrets=0",
            ),
            (
                audit.secrets and (task.needs.kind != "causal" or task.unconditional),
                f"task={task.name}, which writes no text after another; expected a task such as "
                "e2e: type audit.secrets=0",
            ),
        ):
            if wrong:
                raise ConfigError(f"got {typed} with {why}")

    def plant(self, loaded: LoadedModel) -> Planted | None:
        """Return the secrets, if the run is to have any."""
        audit, seed = self._run.audit, self._run.seed
        if not audit.secrets:
            return None
        secrets, words = make_secrets(loaded.text_tokenizer, audit.secrets, seed)
        return Planted(secrets, words, audit, seed)

    def auditor(
        self,
        loaded: LoadedModel,
        objective: Objective,
        like: Record,
        clipper: Clipper,
        mechanism: Mechanism,
        key: bytes,
    ) -> Auditor | None:
        """Return the canaries in separate slots, if the run is to have any.

        Raises:
            ConfigError: for record canaries that a layer of the model cannot clip.
        """
        audit, budget = self._run.audit, self._run.optim.tokens
        parts: dict[str, Canaries] = {}
        if audit.gradients:
            parts["gradients"] = GradientCanaries(audit.gradients, clipper, mechanism, key)
        if audit.records:
            try:
                clipper.check_rows(2)
            except UnsupportedLayerError as error:
                raise ConfigError(
                    f"audit.records is {audit.records}, and such a canary is two records that are "
                    f"clipped as one: {error}. Type audit.records=0 audit.gradients=1000"
                ) from error
            parts["records"] = RecordCanaries(
                canary_records(self._task, loaded, like, audit.records, key),
                objective,
                loaded.model,
                clipper,
                batch_size=mechanism.batch_size,
                weight=audit.weight,
                token_budget=budget,
                key=key,
            )
        return Auditor(parts) if parts else None
