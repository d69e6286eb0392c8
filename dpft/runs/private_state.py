"""What a run needs to go on and no guarantee covers: kept apart from the checkpoints.

A checkpoint holds what follows from releases. State that follows from the noise itself, or from
sums before it, does not belong there: an audit's scores less the releases are noiseless sums. It
lies under ``private/``, one small file for each checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.runs.atomic import fsync_directory, owners_folder, parse_json, write_atomic
from dpft.runs.directory import RunDirectory
from dpft.runs.errors import START_OVER, CheckpointError, disk_report
from dpft.runs.identity import opened, sealed


def save_private_state(run: RunDirectory, name: str, step: int, state: Mapping[str, Any]) -> Path:
    """Write what belongs to the checkpoint of ``step``; call it before that one is saved.

    A kill in between leaves a file without a checkpoint. Such files, and those of checkpoints that
    were dropped since, are removed here.

    Args:
        run: the run, locked by this process.
        name: whose state it is: the folder under ``private/``.
        step: steps taken so far.
        state: plain data that JSON can hold.

    Returns:
        The file, readable by its owner only.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints and their files are as they
            were.
    """
    file = _file(run, name, step)
    try:
        owners_folder(file.parent)
        fsync_directory(run.private)
        for old in file.parent.glob("step-*.json"):
            if not (run.checkpoints / old.stem).exists():
                old.unlink()
        body = {"step": step, "state": dict(state)}
        write_atomic(file, json.dumps(sealed(body)), mode=0o600)
    except OSError as error:
        raise CheckpointError(
            f"could not write {file}: {disk_report(run.private, error)}. Nothing is lost: free "
            "some space and run the same command again"
        ) from error
    return file


def load_private_state(run: RunDirectory, name: str, step: int) -> dict[str, Any]:
    """What `save_private_state` wrote for the checkpoint of ``step``.

    Raises:
        CheckpointError: it is missing or damaged, so that the run cannot go on from there.
    """
    file = _file(run, name, step)
    try:
        held = opened(parse_json(file.read_bytes(), infinities=True))
        if held["step"] != step:
            raise ValueError(f"it is of step {held['step']}")
        return dict(held["state"])
    except FileNotFoundError:
        problem = "is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"cannot be read ({error!r})"
    raise CheckpointError(
        f"{file} {problem}; expected what belongs to checkpoint {file.stem} and lies in no "
        f"checkpoint, since no guarantee covers it. Put the file back, or {START_OVER}"
    )


def _file(run: RunDirectory, name: str, step: int) -> Path:
    return run.private / name / f"step-{step:08d}.json"
