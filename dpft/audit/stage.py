"""Checks of an audited run, and what is planted before training.

``docs/how-to/audit.md`` explains what each kind of canaries can show and what it cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpft.audit.exposure import Planted, make_secrets
from dpft.config.errors import ConfigError

if TYPE_CHECKING:
    from dpft.config.schema import Run
    from dpft.models.load import LoadedModel
    from dpft.tasks.task import Task


def check(run: Run, task: Task) -> None:
    """Raise ConfigError for an audit that means nothing for this run."""
    audit, noun = run.audit, task.unit_noun
    typed = f"audit.gradients={audit.gradients} audit.secrets={audit.secrets}"
    for wrong, why in (
        (
            audit.gradients and not run.clip.private,
            "clip=none, which guarantees nothing that could be refuted; type audit=none",
        ),
        (
            audit.gradients and run.privacy.sampling != "poisson",
            f"sampling={run.privacy.sampling}, which claims no epsilon that canaries could "
            "refute, or another one; type sampling=poisson",
        ),
        (
            audit.secrets and noun != "record",
            f"{noun}s as units of privacy: secrets are single records; type audit.secrets=0",
        ),
        (
            audit.secrets and (task.needs.kind != "causal" or task.unconditional),
            f"task={task.name}, which writes no text after another; expected a task such as "
            "e2e: type audit.secrets=0",
        ),
    ):
        if wrong:
            raise ConfigError(f"got {typed} with {why}")


def plant(run: Run, loaded: LoadedModel) -> Planted | None:
    """Return the secrets, if the run is to have any."""
    if not run.audit.secrets:
        return None
    secrets, words = make_secrets(loaded.text_tokenizer, run.audit.secrets, run.seed)
    return Planted(secrets, words, run.audit, run.seed)
