"""Append-only files of JSON lines: ledger, metrics, norms, benchmark rows.

Guarantee: an entry is on disk when `Log.append` returns, and so is the file's name in its folder.
Only the last line can therefore be torn, by a kill or a power cut, and its `append` never returned.
Readers leave it out, and the next writer cuts it off. Any other damage is an error.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.errors import LogError
from dpft.runs.atomic import Closing, disk_report, fsync, parse_json

if TYPE_CHECKING:
    from torch import Tensor

Entry = dict[str, Any]
NORMS = "norms.jsonl"
REMEDY = "delete that line: it is of no effect on the run"

# Computed from the training records without noise. Poisson batch sizes belong here too: they
# depend on whether a record exists. The check is on names, so it catches slips, not intent.
NOISELESS = frozenset(
    {
        *("actual_batch_size", "batch", "count", "counts", "examples_seen", "indices", "sampled"),
        *("clipped", "clipped_fraction", "fraction_clipped", "sampled_records"),
        *("grad_norm", "grad_norms", "gradient_norm", "gradient_norms", "norm", "norms"),
        *("loss", "losses", "mean_loss", "per_example_norms", "train_loss", "training_loss"),
    }
)


def noiseless_names(value: Any, where: str) -> list[str]:
    """Return the dotted keys inside ``value`` that are names of noiseless training statistics."""
    found: list[str] = []
    for key, item in value.items() if isinstance(value, Mapping) else ():
        name = f"{where}.{key}"
        found += [name] if str(key).lower() in NOISELESS else []
        found += noiseless_names(item, name)
    return found


class Log(Closing):
    """A log that is open for writing; several processes may append to one file.

    Args:
        path: the file, created if missing; only its owner can read it.
        remedy: what to do about a damaged line, as a clause.
        keep: from the first entry for which it is false, all are cut off.
    """

    def __init__(
        self, path: Path, remedy: str, keep: Callable[[Entry], bool] = lambda entry: True
    ) -> None:
        self._path = path
        self._descriptor: int | None = None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
            os.fchmod(self._descriptor, 0o600)  # a copied folder may have lost it
            with self._alone() as descriptor:
                size = 0
                for entry, line in read_lines(path, remedy):
                    if not keep(entry):
                        break
                    size += len(line)
                os.ftruncate(descriptor, size)
                # A line that a dying process left in the page cache is made durable too.
                os.fsync(descriptor)
                fsync(path.parent)
        except (OSError, LogError) as error:
            self.close()
            raise error if isinstance(error, LogError) else self._refused(error) from error

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry, with ``"nan"``, ``"inf"`` and ``"-inf"`` for what JSON lacks."""
        self.append_line(spelled(finite(entry, lambda value: str(float(value)))))

    def append_line(self, line: bytes) -> None:
        """Write one line; it is on disk when this returns, and not in the file if this raises."""
        if self._descriptor is None:
            raise LogError(
                f"{self._path} is closed or failed before; expected an open file: run the same "
                "command again"
            )
        with self._alone() as descriptor:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # its writer died meanwhile
                size = self._path.read_bytes().rfind(b"\n") + 1
                os.ftruncate(descriptor, size)
            try:
                while line:
                    line = line[os.write(descriptor, line) :]
                os.fsync(descriptor)
            except (OSError, KeyboardInterrupt) as error:
                try:
                    os.ftruncate(descriptor, size)
                finally:
                    self.close()
                if isinstance(error, OSError):
                    raise self._refused(error) from error
                raise

    def close(self) -> None:
        """Close the file; `append` refuses from now on."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Yield the open file while no other process writes to it."""
        assert self._descriptor is not None
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield self._descriptor
        finally:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _refused(self, error: OSError) -> LogError:
        return LogError(
            f"could not write to {self._path}: {disk_report(self._path.parent, error)}. Nothing is "
            "lost: free some space and run the same command again"
        )


class MetricsLog(Log):
    """Noiseless training metrics, kept under ``private/``: one entry a step, however often killed.

    Entries from ``resume_step`` on are dropped, since those steps will be replayed.
    """

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        super().__init__(path, REMEDY, lambda entry: entry.get("step") in range(resume_step))


def finite(value: Any, spell: Callable[[float], Any] = lambda value: None) -> Any:
    """Return plain data in which `spell`, or null, replaces each number that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return spell(value)
    if isinstance(value, Mapping):
        return {str(key): finite(item, spell) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, spell) for item in value]
    return value


def norms_of(
    step: int,
    groups: Sequence[str],
    norms: Sequence[Tensor],
    signal: float | None = None,
    noise: float | None = None,
) -> Entry:
    """Return the entry of a step in a `MetricsLog` called `NORMS`, as `read_norms` reads it.

    They are gradient norms of single records, ``(b, K)`` of each microbatch; see `Norms`.
    """
    rows = (row for micro in norms for row in micro.tolist())
    listed = [[float(f"{value:.6g}") for value in row] for row in rows]
    both = {} if signal is None or noise is None else {"signal": signal, "noise": noise}
    return {"step": step, "groups": list(groups), "norms": listed, **both}


@dataclass(frozen=True)
class Norms:
    """Norms of one step: ``values[i][k]`` of record ``i`` in group ``groups[k]``.

    ``signal`` is that of the mean of the clipped gradients before noise, ``noise`` the root of the
    expected square of its noise's; both are None in several processes.
    """

    step: int
    groups: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    signal: float | None = None
    noise: float | None = None


def read_norms(path: Path) -> list[Norms]:
    """Return what a run wrote by `norms_of`, by step."""
    found = []
    for number, entry in enumerate(read_log(path, REMEDY), start=1):
        try:
            groups = tuple(str(name) for name in entry["groups"])
            values = tuple(tuple(float(x) for x in row) for row in entry["norms"])
            if any(len(row) != len(groups) for row in values):
                raise ValueError(f"{len(groups)} groups, but a record has another number of norms")
            both = (float(entry[key]) if key in entry else None for key in ("signal", "noise"))
            found.append(Norms(int(entry["step"]), groups, values, *both))
        except (ValueError, KeyError, TypeError) as error:
            why = f"got {error!r}, expected step, groups and norms"
            raise damaged(path, number, why, REMEDY) from error
    return sorted(found, key=lambda one: one.step)


def read_log(path: Path, remedy: str) -> list[Entry]:
    """Return a log's entries, oldest first, without a torn last one; none without a file."""
    return [entry for entry, _ in read_lines(path, remedy)]


def read_lines(path: Path, remedy: str) -> Iterator[tuple[Entry, bytes]]:
    """Yield each entry of a log and the bytes of its line; LogError for damage.

    A last line counts as torn if it has no end, or if blocks of it are lost, which read as zeros.
    Anything else that is no entry is damage: a complete last line may be of a step that was seen.
    """
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise LogError(f"{path} cannot be read ({error.strerror}); {remedy}") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_json(line)
        except ValueError as error:
            if number == len(lines) and not torn and b"\0" in line:
                return
            raise damaged(path, number, f"not JSON ({error})", remedy) from error
        if not isinstance(entry, dict):
            raise damaged(path, number, f"got a {type(entry).__name__}, expected a mapping", remedy)
        yield entry, line + b"\n"
    if b"\0" in torn:
        return
    text = torn.decode("utf-8", "replace")
    try:
        whole = json.JSONDecoder().raw_decode(text)[1] < len(text)
    except (ValueError, RecursionError):
        return
    if whole:  # no line is torn like that
        raise damaged(path, len(lines) + 1, "its end is missing, and more follows", remedy)


def damaged(path: Path, line: int, why: str, remedy: str) -> LogError:
    """Return the error for a line, counted from 1, that only damage explains."""
    return LogError(
        f"{path}, line {line}: {why}. No kill and no power cut leaves that, so this file was "
        f"changed or the disk is failing: {remedy}"
    )


def spelled(entry: Mapping[str, Any]) -> bytes:
    """Return the line of an entry: always the same bytes for the same entry."""
    try:
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LogError(
            f"an entry cannot be written ({error}); expected finite numbers, strings, booleans, "
            "lists and mappings"
        ) from error
    return text.encode() + b"\n"
