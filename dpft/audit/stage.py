"""What a run does for its audit: plant canaries before training, measure after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpft.audit import exposure
from dpft.audit.auditor import Auditor
from dpft.audit.canaries import Canaries
from dpft.audit.gradients import GradientCanaries
from dpft.audit.records import RecordCanaries, canary_records
from dpft.config.audit import Audit
from dpft.config.errors import ConfigError
from dpft.privacy import UnsupportedLayerError

if TYPE_CHECKING:
    from dpft.config.schema import Run
    from dpft.models.load import LoadedModel
    from dpft.privacy import Clipper, Mechanism
    from dpft.privacy.shapes import FixedShapes
    from dpft.tasks.base import Task
    from dpft.tasks.objectives.base import Losses, Objective
    from dpft.tasks.objectives.records import Record


def check(run: Run, task: Task) -> None:
    """Refuse audits that mean nothing for this run, before anything is loaded.

    Raises:
        ConfigError: saying which setting, and what to type.
    """
    audit = run.audit
    if audit.slots and not run.clip.private:
        raise ConfigError(
            f"audit.gradients is {audit.gradients} and audit.records {audit.records} with "
            "clip=none, which guarantees nothing that could be refuted; type audit=none"
        )
    if audit.records and run.adapt.name == "rgp":
        raise ConfigError(
            f"audit.records is {audit.records} with adapt=rgp: a loss does not change with the "
            "carriers, whose gradients are released, so that no record canary could be told; type "
            "audit.records=0 audit.gradients=1000, or another adapt"
        )
    if audit.slots and run.privacy.sampling != "poisson":
        raise ConfigError(
            f"audit of a run with sampling={run.privacy.sampling}, whose epsilon is not that of "
            "what it does; type sampling=poisson"
        )
    if (audit.records or audit.secrets) and task.unit_noun != "record":
        raise ConfigError(
            f"audit.records={audit.records} audit.secrets={audit.secrets} with "
            f"{task.unit_noun}s as units of privacy: such canaries are single records; type "
            "audit.records=0 audit.secrets=0 audit.gradients=1000"
        )
    if audit.secrets and (task.needs.kind != "causal" or task.unconditional):
        raise ConfigError(
            f"audit.secrets is {audit.secrets}, but task {task.name} writes no text behind another;"
            " expected a task such as e2e: type audit.secrets=0"
        )


def check_layers(audit: Audit, clipper: Clipper) -> None:
    """Refuse record canaries that the model's layers cannot clip, before a step is spent.

    Raises:
        ConfigError: naming the layer, and what to type.
    """
    if not audit.records:
        return
    try:
        clipper.check_rows(2)
    except UnsupportedLayerError as error:
        raise ConfigError(
            f"audit.records is {audit.records}, and such a canary is two records that are clipped "
            f"as one: {error}. Type audit.records=0 audit.gradients=1000"
        ) from error


@dataclass(frozen=True)
class Planted:
    """Secrets that are in the training data."""

    secrets: Sequence[exposure.Secret]
    words: Sequence[str]
    repetitions: int
    candidates: int
    seed: int

    @property
    def records(self) -> list[Record]:
        """Each secret as often as it is repeated."""
        return [secret.record for secret in self.secrets for _ in range(self.repetitions)]

    def scores(self, objective: Any, model: Any, batch_size: int) -> dict[str, Any]:
        """The record's scores of the split ``canaries``."""
        exposures = exposure.measure(
            self.secrets,
            self.words,
            objective,
            model,
            candidates=self.candidates,
            batch_size=batch_size,
            seed=self.seed,
        )
        return exposure.section(exposures, self.repetitions)


def plant(audit: Audit, loaded: LoadedModel, seed: int) -> Planted | None:
    """The secrets of a run, if it is to have any."""
    if not audit.secrets:
        return None
    secrets, words = exposure.make_secrets(loaded.text_tokenizer, audit.secrets, seed)
    return Planted(secrets, words, audit.repetitions, audit.candidates, seed)


def make_auditor(
    run: Run,
    task: Task,
    objective: Objective,
    loaded: LoadedModel,
    like: Record,
    clipper: Clipper,
    mechanism: Mechanism,
    key: bytes,
    *,
    trained: Losses,
    shapes: FixedShapes | None,
) -> Auditor | None:
    """The canaries in slots of their own, if the run is to have any.

    Args:
        run: the settings.
        task: of the run.
        objective: of the task, for this model.
        loaded: the model.
        like: a record, which shows the form of canaries.
        clipper: of the run.
        mechanism: of the run.
        key: decides coins and canaries; secret.
        trained: gives the losses that the run trains on, in its precision.
        shapes: of the run's own records where they are fixed, else None.
    """
    audit = run.audit
    parts: dict[str, Canaries] = {}
    if audit.gradients:
        parts["gradients"] = GradientCanaries(audit.gradients, clipper, mechanism, key)
    if audit.records:
        parts["records"] = RecordCanaries(
            canary_records(task, loaded, like, audit.records, key),
            objective,
            loaded.model,
            clipper,
            trained=trained,
            shapes=shapes,
            batch_size=mechanism.batch_size,
            weight=audit.weight,
            token_budget=run.optim.microbatch_tokens,
            key=key,
        )
    return Auditor(parts) if parts else None
