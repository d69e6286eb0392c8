"""The parts of a run that its user wrote (`dpft.config.imported`): checked, and recorded."""

from __future__ import annotations

from dpft.config import imported
from dpft.config.errors import SettingError
from dpft.config.schema import Clip, Run
from dpft.privacy.clipping import CLIP_FUNCTIONS
from dpft.privacy.clipping.functions import ClipFunction, own_function
from dpft.tasks import TASKS

_METRIC = "metric"


def clip_function(clip: Clip) -> str | ClipFunction:
    """Return the clip function of the settings: a name of dpft's, or the user's function.

    Raises:
        SettingError: it cannot be imported, or does not bound what a record contributes.
    """
    if clip.clip_function in CLIP_FUNCTIONS:
        return clip.clip_function
    function: ClipFunction = imported.load("clip.clip_function", clip.clip_function)
    try:
        own_function(function, clip.clip_function)
    except ValueError as error:
        raise SettingError("clip.clip_function", clip.clip_function, advice=str(error)) from error
    return function


def used(run: Run) -> list[dict[str, str]]:
    """Return where each part that is not dpft's comes from, and what its code was."""
    task = str(run.task["name"])
    asked = [] if task in TASKS else [("task", task)]
    asked += [(_METRIC, name) for name in run.task.get("metrics") or ()]
    if run.clip.private:
        if run.clip.clip_function not in CLIP_FUNCTIONS:
            asked.append(("clip function", run.clip.clip_function))
        if run.clip.own_groups:
            asked.append(("clipping style", run.clip.groups))
    return [imported.origin(kind, path) for kind, path in asked]


def deciding(run: Run) -> dict[str, str]:
    """Return the code of the user that a step's sum follows from, for the head of the ledger."""
    return {
        f"{part['kind']} {part['name']}": f"{part['package']} {part['version']} {part['sha256']}"
        for part in used(run)
        if part["kind"] != _METRIC
    }
