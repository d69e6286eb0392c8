"""Append-only files of JSON lines: ledger, metrics, a sweep's journal, rows of a benchmark.

Guarantee: an entry is on disk when `Log.append` returns, and so is the file's name in its folder.
Only the last line can therefore be torn, by a kill or a power cut, and its `append` never returned.
Readers leave it out, and the next writer cuts it off. Any other damage is an error.
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpft.runs.atomic import Closing, fsync_directory, parse_json
from dpft.runs.errors import LogError, disk_report
from dpft.runs.identity import opened, sealed

Entry = dict[str, Any]
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
    if not isinstance(value, Mapping):
        return []
    found: list[str] = []
    for key, item in value.items():
        if str(key).lower() in NOISELESS:
            found.append(f"{where}.{key}")
        found += noiseless_names(item, f"{where}.{key}")
    return found


class Log(Closing):
    """A log that is open for writing; several processes may append to one file.

    Args:
        path: the file, created if missing; only its owner can read it.
        remedy: what to do about a damaged line, as a clause.
        keep: from the first entry for which it is false, all are cut off.
        intact: bytes that the caller has verified; all behind them is a torn line, and is cut off.
    """

    def __init__(
        self,
        path: Path,
        remedy: str,
        keep: Callable[[Entry], bool] = lambda entry: True,
        intact: int | None = None,
    ) -> None:
        self._path = path
        self._descriptor: int | None = None
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
            os.fchmod(self._descriptor, 0o600)  # a copied folder may have lost it
            with self._alone() as descriptor:
                size = intact or 0
                for entry, line in () if intact is not None else read_lines(path, remedy):
                    if not keep(entry):
                        break
                    size += len(line)
                os.ftruncate(descriptor, size)
                # A line that a dying process left in the page cache is made durable too.
                os.fsync(descriptor)
                fsync_directory(path.parent)
        except OSError as error:
            self.close()
            raise self._refused(error) from error
        except LogError:
            self.close()
            raise

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one entry; see `append_line`."""
        self.append_line(spelled(entry))

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


class MetricsLog(Closing):
    """Noiseless training metrics, kept under ``private/``: one entry a step, however often killed.

    Entries from ``resume_step`` on are dropped, since those steps will be replayed. With
    ``checksums`` each entry gets a SHA-256, for `read_checked`.
    """

    def __init__(
        self, path: Path, resume_step: int = 0, remedy: str = REMEDY, checksums: bool = False
    ) -> None:
        self._checksums = checksums
        self._log = Log(path, remedy, keep=lambda entry: entry.get("step") in range(resume_step))

    def append(self, step: int, **values: Any) -> None:
        """Write one step's metrics; ``"nan"``, ``"inf"`` and ``"-inf"`` for what JSON lacks."""
        entry = {"step": step} | _with_words(values)
        self._log.append(sealed(entry) if self._checksums else entry)

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def read_checked(path: Path, remedy: str) -> list[Entry]:
    """Return the entries of a `MetricsLog` with checksums, without these; none without a file."""
    entries = []
    for number, entry in enumerate(read_log(path, remedy) if path.exists() else (), start=1):
        try:
            entries.append(opened(entry))
        except ValueError as error:
            raise damaged(path, number, str(error), remedy) from None
    return entries


def read_log(path: Path, remedy: str) -> list[Entry]:
    """Return the entries of a log, oldest first, without a torn last one; nothing is changed."""
    return [entry for entry, _ in read_lines(path, remedy)]


def read_lines(path: Path, remedy: str) -> Iterator[tuple[Entry, bytes]]:
    """Yield each entry of a log and the bytes of its line; arguments and errors as of `read_log`.

    A last line counts as torn if it has no end, or if blocks of it are lost, which read as zeros.
    Anything else that is no entry is damage: a complete last line may be of a step that was seen.
    """
    try:
        *lines, torn = path.read_bytes().split(b"\n")
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
    if b"\0" not in torn and _goes_on(torn.decode("utf-8", "replace")):
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


def _goes_on(text: str) -> bool:
    """Return whether a complete entry is followed by anything: no line is torn like that."""
    try:
        return json.JSONDecoder().raw_decode(text)[1] < len(text)
    except (ValueError, RecursionError):
        return False


def _with_words(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _with_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_words(item) for item in value]
    return value
