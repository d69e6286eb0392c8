"""What `dpft train` refuses once it has model and data, found without weights and records."""

from __future__ import annotations

from dpft.config.schema import Run
from dpft.models.adapt import adapt
from dpft.models.load import without_hub
from dpft.models.sizes import FAMILIES
from dpft.privacy import Mechanism
from dpft.tasks.base import Task
from dpft.tasks.own_texts import FROM_DATA
from dpft.training.mechanisms import attach_clipper, over_groups


def check_model(run: Run, task: Task, mechanism: Mechanism | None) -> str | None:
    """Check that task, model, adaptation and clipping go together.

    Args:
        run: the settings.
        task: of the run.
        mechanism: of the run; None: how many units of privacy there are is not known.

    Returns:
        What was not checked, and why; None: all was.

    Raises:
        DpftError: if they do not.
    """
    if run.task.get("classes") == FROM_DATA:
        return "the classes are not known without the data, so the model was not checked"
    loaded = without_hub(run.model, task.needs, run.seed)
    if loaded is None:
        checked = "its kind alone" if run.model.path in FAMILIES else "nothing of it"
        return f"{run.model.path} is on the hub, which was not asked: {checked} was checked"
    loaded = adapt(loaded, run.adapt, task.needs, run.seed)
    task.objective(loaded)
    clipper = attach_clipper(run.clip, loaded.model.train())
    if mechanism is not None:
        over_groups(mechanism, run.clip, clipper)
    clipper.close()
    return None
