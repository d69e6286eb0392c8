"""Checkpoints: whole or absent, verified when read, the last two good ones kept."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.runs.atomic import fsync_directory, fsync_file, sha256_file
from dpft.runs.directory import RunDirectory
from dpft.runs.errors import START_OVER, CheckpointError, LedgerMismatchError, disk_report
from dpft.runs.identity import canonical_json
from dpft.runs.wellformed import parse_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
STATE, MANIFEST = "state.pt", "manifest.json"
KEPT = 2  # checkpoints, the newest included
_TEMPORARY = ".tmp-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        step: steps that these weights have behind them; the next step's number.
        tensors: as saved, on the CPU.
        state: as saved, tensors on the CPU.
        path: its folder.
        warnings: newer checkpoints that were passed over, and why.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    path: Path
    warnings: list[str] = field(default_factory=list)


def save(
    run: RunDirectory,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write a checkpoint, then drop those that it makes superfluous.

    It is written beside the others under a temporary name, made durable and renamed, so a kill
    leaves the previous ones untouched and at worst a folder that is removed on resuming.

    Args:
        run: the run, locked by this process.
        step: steps taken so far.
        tensors: what moves: trainable parameters. May be empty.
        state: plain data and tensors: optimizer, scheduler and whatever resuming needs.

    Returns:
        The checkpoint's folder.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are as they were.
        TypeError: ``state`` holds something else than plain data and tensors.
    """
    content = {"tensors": _portable(tensors, "tensors"), "state": _portable(state)}
    target = run.checkpoints / f"step-{step:08d}"
    temporary = run.checkpoints / f"{_TEMPORARY}{target.name}"
    try:
        _remove_leftovers(run)
        temporary.mkdir()
        _write(temporary, step, content)
        _put_in_place(temporary, target)
    except OSError as error:
        report = disk_report(run.checkpoints, error)  # before the clean-up changes it
        shutil.rmtree(temporary, ignore_errors=True)
        earlier = [path.name for number, path in _steps(run) if number < step]
        last = f"{earlier[-1]} is the last good one" if earlier else "there is no earlier one"
        raise CheckpointError(
            f"could not write checkpoint {target.name} in {run.checkpoints}: {report}. Of the "
            f"checkpoints in place, {last}. Nothing is lost: free some space and run the same "
            f"command again"
        ) from error
    older = [path for number, path in _steps(run) if number <= step]
    ahead = [path for number, path in _steps(run) if number > step]  # damaged
    _drop(run, older[:-KEPT] + ahead)
    return target


def load_latest(run: RunDirectory, ledger_steps: int | None) -> Checkpoint | None:
    """The newest checkpoint whose files are what its manifest says.

    Guarantee: never returns weights that have seen more steps than the ledger counts.

    Args:
        run: the run.
        ledger_steps: `Ledger.next_step`; None for a run without privacy, which has no ledger.

    Returns:
        None if there is no good one: start at step 0, where replayed steps repeat themselves
        exactly. Damaged ones are passed over with a warning, in ``warnings`` and the log.

    Raises:
        LedgerMismatchError: a good checkpoint is ahead of the ledger, so the ledger lost lines.
    """
    _remove_leftovers(run)
    warnings: list[str] = []
    for step, path in reversed(_steps(run)):
        try:
            tensors, state = _read(path, step)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            warnings.append(f"checkpoint {path.name} is damaged and was passed over: {error}")
            _log.warning("%s", warnings[-1])
            continue
        if ledger_steps is not None and step > ledger_steps:
            raise LedgerMismatchError(
                f"{path} has {step} steps behind it but the ledger holds {ledger_steps}; expected "
                f"at least {step}: the ledger lost lines and would under-report what was spent. "
                f"Restore {run.ledger}, or {START_OVER}"
            )
        # A process that was killed behind its last checkpoint may have left one too many.
        _drop(run, [earlier for number, earlier in _steps(run) if number <= step][:-KEPT])
        return Checkpoint(step, tensors, state, path, warnings)
    return None


def drop_ahead(run: RunDirectory, step: int) -> None:
    """Remove the checkpoints behind ``step``: damaged ones, of steps that are about to be repeated.

    In a new noise epoch they are other weights' history. Read again, if the damage was the disk's
    passing one, they would be taken for this one's.
    """
    _drop(run, [path for number, path in _steps(run) if number > step])


def _write(folder: Path, step: int, content: dict[str, Any]) -> None:
    _write_state(folder / STATE, content)
    fsync_file(folder / STATE)
    facts = {"sha256": sha256_file(folder / STATE), "size": (folder / STATE).stat().st_size}
    body = {"format": FORMAT, "step": step, "files": {STATE: facts}}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({**body, "sha256": _digest(body)}, indent=2, sort_keys=True))
    fsync_file(manifest)
    fsync_directory(folder)


def _write_state(path: Path, state: dict[str, Any]) -> None:
    import torch

    with path.open("wb", buffering=0) as file:
        writer = _PatientWriter(file.write)
        try:
            torch.save(state, writer)  # type: ignore[arg-type]
        except RuntimeError as error:
            # Closing its half-written file, torch.save complains, and forgets that it was stopped.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise
    if writer.error is not None:
        raise writer.error


class _PatientWriter:
    """Keeps the first disk error for later.

    An exception that crosses ``torch.save``'s C++ writer comes out as a RuntimeError that has
    forgotten that the disk was full.
    """

    def __init__(self, write: Any) -> None:
        self._write = write
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        total = len(view)
        try:
            while self.error is None and len(view):
                view = view[self._write(view) :]
        except OSError as error:
            self.error = error
        return total

    def flush(self) -> None:
        """Nothing is buffered."""


def _read(path: Path, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    import torch

    manifest = parse_json((path / MANIFEST).read_bytes())
    if not isinstance(manifest, dict):
        raise ValueError(f"{MANIFEST} holds no mapping")
    claimed = manifest.pop("sha256")
    if claimed != _digest(manifest):
        raise ValueError(f"{MANIFEST} does not match its own checksum")
    if manifest["format"] != FORMAT or manifest["step"] != step:
        raise ValueError(
            f"{MANIFEST} says format {manifest['format']}, step {manifest['step']}; expected "
            f"format {FORMAT}, step {step}"
        )
    for name, expected in manifest["files"].items():
        size = (path / name).stat().st_size
        if size != expected["size"]:
            raise ValueError(f"{name} has {size} bytes, expected {expected['size']}")
        if sha256_file(path / name) != expected["sha256"]:
            raise ValueError(f"{name} does not match its checksum")
    content = torch.load(path / STATE, weights_only=True, map_location="cpu")
    return content["tensors"], content["state"]


def _portable(value: Any, where: str = "state") -> Any:
    """The same state of plain data and tensors on the CPU, which pickles to the same bytes always.

    Pickle writes one shared object differently from two equal ones, and which of the two a state
    holds changes when it is loaded. So strings are interned and containers are made anew.

    Raises:
        TypeError: naming the place of a value that is not plain data.
    """
    import torch

    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor if whole else tensor.clone()
    if isinstance(value, str):
        return sys.intern(str(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {
            _portable(key, where): _portable(item, f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [_portable(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    raise TypeError(
        f"{where} is a {type(value).__name__}; expected tensors, numbers, strings, booleans, None, "
        f"dicts, lists and tuples only: a checkpoint must load without running code"
    )


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


def _steps(run: RunDirectory) -> list[tuple[int, Path]]:
    """Checkpoints in place, oldest first."""
    found = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in run.checkpoints.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)


def _remove_leftovers(run: RunDirectory) -> None:
    for path in run.checkpoints.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def _put_in_place(temporary: Path, target: Path) -> None:
    if target.exists():  # passed over as damaged when this run was resumed before it
        target.rename(target.with_name(f"{_TEMPORARY}replaced-{target.name}"))
    temporary.rename(target)
    fsync_directory(target.parent)


def _drop(run: RunDirectory, paths: Sequence[Path]) -> None:
    for path in paths:
        # Renamed first: a kill amid the removal must not leave what looks like a checkpoint.
        path.rename(path.with_name(f"{_TEMPORARY}old-{path.name}"))
    _remove_leftovers(run)
