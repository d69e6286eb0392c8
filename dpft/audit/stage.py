"""What a run does for its audit: plant canaries before training, measure after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpft.audit.auditor import Auditor
from dpft.audit.canaries import Canaries
from dpft.audit.exposure import Planted, make_secrets
from dpft.audit.gradients import GradientCanaries
from dpft.audit.records import RecordCanaries, canary_records
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


class Stage:
    """The audit of a run.

    Args:
        run: the settings.
        task: of the run.

    Raises:
        ConfigError: for an audit that means nothing for this run, before anything is loaded.
    """

    def __init__(self, run: Run, task: Task) -> None:
        self._run = run
        self._task = task
        audit = run.audit
        if audit.slots and not run.clip.private:
            raise ConfigError(
                f"audit.gradients is {audit.gradients} and audit.records {audit.records} with "
                "clip=none, which guarantees nothing that could be refuted; type audit=none"
            )
        if audit.records and run.adapt.name == "rgp":
            raise ConfigError(
                f"audit.records is {audit.records} with adapt=rgp: a loss does not change with the "
                "carriers, whose gradients are released, so that no record canary could be "
                "recognised; type audit.records=0 audit.gradients=1000, or another adapt"
            )
        if audit.slots and run.privacy.sampling != "poisson":
            raise ConfigError(
                f"audit of a run with sampling={run.privacy.sampling}, which claims no epsilon "
                "that canaries could refute, or another one; type sampling=poisson"
            )
        if (audit.records or audit.secrets) and task.unit_noun != "record":
            raise ConfigError(
                f"audit.records={audit.records} audit.secrets={audit.secrets} with "
                f"{task.unit_noun}s as units of privacy: such canaries are single records; type "
                "audit.records=0 audit.secrets=0 audit.gradients=1000"
            )
        if audit.secrets and (task.needs.kind != "causal" or task.unconditional):
            raise ConfigError(
                f"audit.secrets is {audit.secrets}, but task {task.name} writes no text behind "
                "another; expected a task such as e2e: type audit.secrets=0"
            )

    def check_layers(self, clipper: Clipper) -> None:
        """Refuse record canaries that the model's layers cannot clip, before a step is spent.

        Raises:
            ConfigError: naming the layer, and what to type.
        """
        records = self._run.audit.records
        if not records:
            return
        try:
            clipper.check_rows(2)
        except UnsupportedLayerError as error:
            raise ConfigError(
                f"audit.records is {records}, and such a canary is two records that are clipped "
                f"as one: {error}. Type audit.records=0 audit.gradients=1000"
            ) from error

    def plant(self, loaded: LoadedModel) -> Planted | None:
        """The secrets, if the run is to have any."""
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
        *,
        trained: Losses,
        shapes: FixedShapes | None,
    ) -> Auditor | None:
        """The canaries in slots of their own, if the run is to have any.

        Args:
            loaded: the model.
            objective: of the task, for this model.
            like: a record, which gives the form of canaries.
            clipper: of the run.
            mechanism: of the run.
            key: decides coins and canaries; secret.
            trained: gives the losses that the run trains on, in its precision.
            shapes: of the run's own records where they are fixed, else None.
        """
        audit = self._run.audit
        parts: dict[str, Canaries] = {}
        if audit.gradients:
            parts["gradients"] = GradientCanaries(audit.gradients, clipper, mechanism, key)
        if audit.records:
            parts["records"] = RecordCanaries(
                canary_records(self._task, loaded, like, audit.records, key),
                objective,
                loaded.model,
                clipper,
                trained=trained,
                shapes=shapes,
                batch_size=mechanism.batch_size,
                weight=audit.weight,
                token_budget=self._run.optim.microbatch_tokens,
                key=key,
            )
        return Auditor(parts) if parts else None
