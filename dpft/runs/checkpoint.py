"""Checkpoints: whole or absent, verified when read, the last two and the best they name kept.

Each is a folder with the tensors, in a file for each rank that holds a part of them
(`dpft.parallel.parts`), and a manifest of plain data: what lies where, checksums, and the small
state. So it is of one form in every layout, and any number of ranks may read it.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.runs.atomic import fsync_directory, fsync_file, parse_json, sha256_file
from dpft.runs.directory import RunDirectory
from dpft.runs.errors import START_OVER, CheckpointError, disk_report
from dpft.runs.identity import canonical_json, opened, sealed

if TYPE_CHECKING:
    from torch import Tensor

    from dpft.parallel.cohort import TrainingCohort

FORMAT = 2  # 1: all in one file, state.pt
MANIFEST = "manifest.json"
KEPT = 2  # checkpoints, the newest included
BEST = "best"  # in the state: the step whose weights were the best so far, of a checkpoint too
_TEMPORARY = ".tmp-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        step: steps that these weights have behind them; the next step's number.
        state: as saved; tuples are lists.
        path: its folder.
        written: what tensors there are, by name: see `dpft.parallel.parts.Written`.
        cohort: the ranks that read it.
        warnings: newer checkpoints that were passed over, and why.
    """

    step: int
    state: dict[str, Any]
    path: Path
    written: Mapping[str, Any]
    cohort: TrainingCohort
    warnings: list[str] = field(default_factory=list)

    def described(self) -> dict[str, Tensor]:
        """Tensors without numbers, of the types and whole shapes of all that were saved."""
        from dpft.parallel import parts

        return parts.described(self.written)

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read tensors into these, or into the parts of them that this rank holds; all must ask.

        Raises:
            CheckpointError: they cannot be read, or are of other shapes.
        """
        from dpft.parallel import parts

        try:
            parts.read(self.path, self.written, targets, self.cohort)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.path} cannot be read: {error}; expected what its {MANIFEST} tells of. If "
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
    """Write a checkpoint, then drop those that it makes superfluous; every rank must ask.

    Guarantee: it is written beside the others under a temporary name, made durable by every rank
    and then renamed by the first, so a kill of any of them at any moment leaves the previous ones
    untouched and at worst a folder that is removed on resuming.

    Args:
        run: the run, locked by this process; None on the ranks that do not hold it.
        step: steps taken so far.
        tensors: what moves, or this rank's parts of it: trainable parameters, optimizer.
        state: plain data that JSON can hold, and whatever else resuming needs; of the first rank.
        cohort: the ranks; None: this process.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are as they were.
        RankError: another rank could not.
        TypeError: ``state`` holds something else than plain data.
    """
    from dpft.parallel import parts
    from dpft.parallel.cohort import SingleProcess, together

    cohort = cohort or SingleProcess()
    folder: Path | None = None
    with together(cohort, f"checkpoint {step}"):
        if run is not None:
            folder = run.checkpoints / f"{_TEMPORARY}step-{step:08d}"
            canonical_json(state)
            with _refused(folder, step, first=True):
                _remove_leftovers(run.checkpoints)
                folder.mkdir()
    folder = cohort.from_first(folder)
    assert folder is not None
    with together(cohort), _refused(folder, step, first=run is not None):
        written = parts.write(folder, tensors, cohort)
        if run is not None:
            _write_manifest(folder, step, state, written)
            _put_in_place(folder, run.checkpoints / f"step-{step:08d}")
    if run is not None:
        ahead = [path for number, path in _steps(run.checkpoints) if number > step]  # damaged
        _drop(run.checkpoints, _superfluous(run.checkpoints, step) + ahead)


def load_latest(
    run: RunDirectory | None, cohort: TrainingCohort | None = None
) -> Checkpoint | None:
    """The newest checkpoint whose files are what its manifest says; every rank must ask.

    `Ledger.go_on` refuses one that is ahead of the ledger.

    Args:
        run: the run; None on the ranks that do not hold it.
        cohort: the ranks; None: this process.

    Returns:
        None if there is no good one: start at step 0, where replayed steps repeat themselves
        exactly. Damaged ones are passed over with a warning, in ``warnings`` and the log.

    Raises:
        CheckpointError: it is of another version's form, or a rank does not see it.
    """
    from dpft.parallel.cohort import SingleProcess, together

    cohort = cohort or SingleProcess()
    found: list[tuple[int, Path]] = []
    with together(cohort):
        if run is not None:
            _remove_leftovers(run.checkpoints)
            found = _steps(run.checkpoints)
    checkpoints = cohort.from_first(None if run is None else run.checkpoints)
    with together(cohort):
        if checkpoints is not None and cohort.divided:
            _check_shared(checkpoints, cohort)
    warnings: list[str] = []
    for step, path in reversed(cohort.from_first(found)):
        told, problem = _told(run, path, step, cohort)
        if problem:
            warnings.append(f"checkpoint {path.name} is damaged and was passed over: {problem}")
            if run is not None:
                _log.warning("%s", warnings[-1])
            continue
        with together(cohort):
            if run is not None:
                # A process that was killed behind its last checkpoint may have left one too many.
                _drop(run.checkpoints, _superfluous(run.checkpoints, step))
        return Checkpoint(step, told["state"], path, told["tensors"], cohort, warnings)
    return None


def load_best(
    run: RunDirectory | None, step: int, cohort: TrainingCohort | None = None
) -> Checkpoint:
    """The checkpoint of a step, which later ones name as the best; every rank must ask.

    Args:
        run: the run; None on the ranks that do not hold it.
        step: steps that it has behind it.
        cohort: the ranks; None: this process.

    Raises:
        CheckpointError: it is gone, or damaged.
    """
    from dpft.parallel.cohort import SingleProcess

    cohort = cohort or SingleProcess()
    path = cohort.from_first(None if run is None else run.checkpoints / f"step-{step:08d}")
    assert path is not None
    told, problem = _told(run, path, step, cohort)
    if problem:
        raise CheckpointError(
            f"{path}, the best one by evaluation, is damaged or gone: {problem}. Put it back; or "
            f"remove {path.parent} and type the same command again, which repeats all steps "
            "exactly: they count once"
        )
    return Checkpoint(step, told["state"], path, told["tensors"], cohort)


def drop_ahead(run: RunDirectory, step: int) -> None:
    """Remove the checkpoints behind ``step``: damaged ones, of steps that are about to be repeated.

    In a new stretch of the ledger they are other weights' history. If the damage was temporary, a
    later resume would read them as this one's.
    """
    _drop(run.checkpoints, [path for number, path in _steps(run.checkpoints) if number > step])


@contextmanager
def _refused(folder: Path, step: int, first: bool) -> Iterator[None]:
    """Around the writing of a checkpoint: what is left is removed, and a full disk is told of."""
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
            f"could not write checkpoint {folder.name.removeprefix(_TEMPORARY)} in "
            f"{folder.parent}: {report}. Of the checkpoints in place, {last}. Nothing is lost: "
            "free some space and run the same command again"
        ) from error


def _check_shared(checkpoints: Path, cohort: TrainingCohort) -> None:
    if not checkpoints.is_dir():
        raise CheckpointError(
            f"rank {cohort.rank} of {cohort.size} does not see {checkpoints}, where each rank "
            "writes its part of a checkpoint; expected a folder on a file system that all machines "
            "share: type runs_dir=FOLDER with such a one"
        )


def _write_manifest(folder: Path, step: int, state: Mapping[str, Any], written: Any) -> None:
    files, tensors = written
    body = {"format": FORMAT, "step": step, "state": state, "files": files, "tensors": tensors}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps(sealed(body), sort_keys=True))
    fsync_file(manifest)
    fsync_directory(folder)


def _manifest(path: Path, step: int) -> dict[str, Any]:
    """What the manifest says; or what is wrong with it, as ``problem``.

    Raises:
        CheckpointError: it is sound, and of another version's form.
    """
    try:
        told = opened(parse_json((path / MANIFEST).read_bytes(), infinities=True))
        if told["step"] != step:
            raise ValueError(f"it says step {told['step']}; expected {step}")
        if told["format"] == FORMAT:
            return {name: told[name] for name in ("state", "files", "tensors")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"problem": f"{MANIFEST}: {error}"}
    raise CheckpointError(
        f"{path} is of format {told['format']}, which another version of dpft wrote; expected "
        f"format {FORMAT}: continue with the version that began the run, or {START_OVER}"
    )


def _told(
    run: RunDirectory | None, path: Path, step: int, cohort: TrainingCohort
) -> tuple[dict[str, Any], str]:
    """What the manifest says, and what is wrong with it or with a file; all ranks must ask."""
    from dpft.parallel.cohort import together

    with together(cohort):
        told = _manifest(path, step) if run is not None else {}
    told = cohort.from_first(told)
    return told, told.get("problem") or _damage(path, told["files"], cohort)


def _superfluous(checkpoints: Path, step: int) -> list[Path]:
    """Of those up to a step all but the last `KEPT`, and the best that one of these names."""
    found = [(number, path) for number, path in _steps(checkpoints) if number <= step]
    states = (_manifest(path, number).get("state", {}) for number, path in found[-KEPT:])
    best = {state.get(BEST) for state in states}
    return [path for number, path in found[:-KEPT] if number not in best]


def _damage(path: Path, files: Mapping[str, Any], cohort: TrainingCohort) -> str:
    """What is wrong with a file; nothing if all are sound. Ranks with parts share the work."""
    names, found = sorted(files), ""
    own = names[cohort.rank :: cohort.size] if cohort.divided else names * (cohort.rank == 0)
    for name in own:
        try:
            size = (path / name).stat().st_size
            if size != files[name]["size"]:
                found = f"{name} has {size} bytes, expected {files[name]['size']}"
            elif sha256_file(path / name) != files[name]["sha256"]:
                found = f"{name} does not match its checksum"
        except OSError as error:
            found = str(error)
    return next(filter(None, cohort.gather(found)), "")


def _steps(checkpoints: Path) -> list[tuple[int, Path]]:
    """Checkpoints in place, oldest first."""
    found = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in checkpoints.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _remove_leftovers(checkpoints: Path) -> None:
    for path in checkpoints.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def _put_in_place(temporary: Path, target: Path) -> None:
    if target.exists():  # passed over as damaged when this run was resumed before it
        target.rename(target.with_name(f"{_TEMPORARY}replaced-{target.name}"))
    temporary.rename(target)
    fsync_directory(target.parent)


def _drop(checkpoints: Path, paths: Sequence[Path]) -> None:
    for path in paths:
        # Renamed first: a kill amid the removal must not leave what looks like a checkpoint.
        path.rename(path.with_name(f"{_TEMPORARY}old-{path.name}"))
    _remove_leftovers(checkpoints)
