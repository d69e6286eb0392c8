"""Checkpoints: whole or absent, verified when read, the last two kept.

Each is a folder with safetensors files, one for each rank that holds a part of the tensors
(`dpft.parallel.parts`), and a manifest of plain data: the files' checksums and the small state. Its
form is the same in every layout, and any number of ranks can read it.

A checkpoint holds only what follows from releases. State that follows from the noise itself, or
from sums before it, is under ``private/``, one small file for each checkpoint: an audit's scores
less the releases, for instance, are noiseless sums.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.errors import START_OVER, CheckpointError
from dpft.runs.atomic import (
    disk_report,
    fsync,
    owners_folder,
    parse_json,
    sha256_file,
    write_atomic,
)
from dpft.runs.directory import RunDirectory
from dpft.runs.identity import canonical_json, opened, sealed

if TYPE_CHECKING:
    from torch import Tensor

    from dpft.parallel.cohort import TrainingCohort

MANIFEST = "manifest.json"
KEPT = 2  # checkpoints, the newest included
_TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    step: int  # steps that these weights have behind them; the next step's number
    state: dict[str, Any]  # as saved; tuples are lists
    path: Path
    written: Mapping[str, Tensor]  # without values, of the types and whole shapes of all tensors
    cohort: TrainingCohort

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read tensors into these, or into this rank's parts of them; collective."""
        from dpft.parallel import parts

        try:
            parts.read(self.path, targets, self.cohort)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error}; expected the tensors that were saved. If "
                "the disk is sound, remove the folder and run the same command again, which goes "
                "on from the checkpoint before"
            ) from error


def save(
    run: RunDirectory | None,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    cohort: TrainingCohort | None = None,
) -> None:
    """Write a checkpoint, then remove superfluous ones; collective.

    Guarantee: it is written under a temporary name, made durable by every rank and then renamed by
    the first, so a kill of any of them at any moment leaves the previous ones untouched and at
    worst a folder that is removed on resuming. Ranks that do not hold the run's folder pass None.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are as they were.
        RankError: another rank could not.
        TypeError: ``state`` holds something else than plain data.
    """
    from dpft.parallel import parts
    from dpft.parallel.cohort import TrainingCohort, together

    cohort = cohort or TrainingCohort()
    folder: Path | None = None
    with together(cohort, f"checkpoint {step}"):
        if run is not None:
            folder = run.checkpoints / f"{_TEMPORARY}step-{step:08d}"
            canonical_json(state)
            with _explained(folder, step, first=True):
                _remove_leftovers(run.checkpoints)
                folder.mkdir()
    folder = cohort.broadcast_object(folder)
    assert folder is not None
    with together(cohort), _explained(folder, step, first=run is not None):
        files = parts.write(folder, tensors, cohort)
        if run is not None:
            _write_manifest(folder, {"step": step, "state": state, "files": files})
            target = run.checkpoints / f"step-{step:08d}"
            if target.exists():  # where a run that was continued stops before its next step
                target.rename(target.with_name(f"{_TEMPORARY}replaced-{target.name}"))
            folder.rename(target)
            fsync(run.checkpoints)
    if run is not None:
        _drop_superfluous(run.checkpoints)


def _write_manifest(folder: Path, body: Mapping[str, Any]) -> None:
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(sealed(body), sort_keys=True))
    fsync(manifest)
    fsync(folder)


@contextmanager
def _explained(folder: Path, step: int, first: bool) -> Iterator[None]:
    """Remove what a failed write of a checkpoint left, and report a full disk."""
    try:
        yield
    except Exception as error:
        report = disk_report(folder.parent, error)  # before the clean-up changes it
        if first:
            shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        earlier = [path.name for number, path in _steps(folder.parent) if number < step]
        last = f"{earlier[-1]} is the last good one" if earlier else "there is no earlier one"
        raise CheckpointError(
            f"could not write checkpoint step-{step:08d} in {folder.parent}: {report}. Of the "
            f"checkpoints in place, {last}. Nothing is lost: free some space and run the same "
            "command again"
        ) from error


def load(run: RunDirectory | None, cohort: TrainingCohort | None = None) -> Checkpoint | None:
    """Return the newest checkpoint.

    None: there is none; start at step 0, where replayed steps repeat themselves exactly.
    `Ledger.go_on` refuses one that is ahead of the ledger. Collective; the arguments are those of
    `save`.

    Raises:
        CheckpointError: it is damaged or gone, or this rank does not see the folder.
    """
    from dpft.parallel.cohort import TrainingCohort, together

    cohort = cohort or TrainingCohort()
    manifest: dict[str, Any] = {}
    written: dict[str, Tensor] = {}
    step, problem = None, ""
    with together(cohort):
        if run is not None:
            _remove_leftovers(run.checkpoints)
            step = max((number for number, _ in _steps(run.checkpoints)), default=None)
    checkpoints, step = cohort.broadcast_object((None if run is None else run.checkpoints, step))
    with together(cohort):
        if checkpoints is not None and cohort.divided and not checkpoints.is_dir():
            raise CheckpointError(
                f"rank {cohort.rank} of {cohort.size} does not see {checkpoints}, where each rank "
                "writes its part of a checkpoint; expected a folder on a file system that all "
                "machines share: type runs_dir=FOLDER with such a one"
            )
    if checkpoints is None or step is None:
        return None
    path = checkpoints / f"step-{step:08d}"
    if run is not None:
        try:
            manifest, written = _verified(path, step)
            # A process that was killed after its last checkpoint may have left too many.
            _drop_superfluous(run.checkpoints)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{error}"
    manifest, written, problem = cohort.broadcast_object((manifest, written, problem))
    if problem:
        raise CheckpointError(
            f"{path} is damaged or gone: {problem}; expected what was saved. Put it back, or "
            f"remove {path} and type the same command again: steps from "
            "the checkpoint before, or from the first one, are repeated exactly and count once"
        )
    return Checkpoint(step, manifest["state"], path, written, cohort)


def _verified(path: Path, step: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return manifest and tensors without values; raise OSError or ValueError for damage."""
    from dpft.parallel import parts

    try:
        manifest = opened(parse_json((path / MANIFEST).read_bytes(), infinities=True))
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from error
    if manifest["step"] != step:
        raise ValueError(f"{MANIFEST} says step {manifest['step']}; expected {step}")
    for name, facts in manifest["files"].items():
        size = (path / name).stat().st_size
        if size != facts["size"]:
            raise ValueError(f"{name} has {size} bytes, expected {facts['size']}")
        if sha256_file(path / name) != facts["sha256"]:
            raise ValueError(f"{name} does not match its checksum")
    return manifest, parts.described(path)


def _steps(checkpoints: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints in place, oldest first."""
    found = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in checkpoints.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _drop_superfluous(checkpoints: Path) -> None:
    """Remove all checkpoints except the last `KEPT`, and what a kill left of others."""
    for _, path in _steps(checkpoints)[:-KEPT]:
        # Renamed first: a kill during the removal must not leave what looks like a checkpoint.
        path.rename(path.with_name(f"{_TEMPORARY}old-{path.name}"))
    _remove_leftovers(checkpoints)


def _remove_leftovers(checkpoints: Path) -> None:
    for path in checkpoints.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def save_private_state(run: RunDirectory, name: str, step: int, state: Mapping[str, Any]) -> Path:
    """Write what belongs to the checkpoint of ``step``, and return the file; call it before `save`.

    ``name`` is the folder under ``private/``. A kill in between leaves a file without a checkpoint.
    Such files, and those of checkpoints that were dropped since, are removed here.
    """
    file = run.private / name / f"step-{step:08d}.json"
    try:
        owners_folder(file.parent)
        fsync(run.private)
        for old in file.parent.glob("step-*.json"):
            if not (run.checkpoints / old.stem).exists():
                old.unlink()
        write_atomic(file, json.dumps(sealed({"step": step, "state": dict(state)})), mode=0o600)
    except OSError as error:
        raise CheckpointError(
            f"could not write {file}: {disk_report(run.private, error)}. Nothing is lost: free "
            "some space and run the same command again"
        ) from error
    return file


def load_private_state(run: RunDirectory, name: str, step: int) -> dict[str, Any]:
    """Return what `save_private_state` wrote for the checkpoint of ``step``."""
    file = run.private / name / f"step-{step:08d}.json"
    try:
        held = opened(parse_json(file.read_bytes(), infinities=True))
        if held["step"] != step:
            raise ValueError(f"it is of step {held['step']}")
        return dict(held["state"])
    except FileNotFoundError:
        problem = "is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot be read ({error!r})"
    raise CheckpointError(
        f"{file} {problem}; expected what belongs to checkpoint {file.stem} and is in no "
        f"checkpoint, since no guarantee covers it. Put the file back, or {START_OVER}"
    )
