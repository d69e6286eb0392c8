"""The privacy ledger: what was spent, written before it is used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.runs.atomic import fsync_directory, write_atomic
from dpft.runs.closing import Closing
from dpft.runs.errors import START_OVER, LedgerError, LedgerMismatchError, disk_report
from dpft.runs.guard import noiseless_names
from dpft.runs.identity import canonical, canonical_json, differences
from dpft.runs.wellformed import parse_json

LEDGER_VERSION = 1


@dataclass(frozen=True)
class LedgerContents:
    """What a ledger file says.

    Attributes:
        header: what every step was spent under: mechanism, data and key.
        entries: one mapping per step, ``entries[i]["step"] == i``.
    """

    header: dict[str, Any]
    entries: list[dict[str, Any]]

    @property
    def steps_spent(self) -> int:
        """Privatised steps on file."""
        return len(self.entries)


def read_ledger(path: Path) -> LedgerContents:
    """Read a ledger without changing it; a torn last line does not count as spent.

    Raises:
        LedgerError: the file is missing or damaged anywhere but in a torn last line.
    """
    return _parse(path, _whole_lines(path)[0])


class Ledger(Closing):
    """Append-only record of the privatised steps of one run, one JSON line each.

    Steps are counted from 0, as the samplers count them. There are no times and nothing
    of the data in it, so a run that was killed and continued leaves the same bytes as one that was
    not. A useful entry is a digest of the *noisy* gradient: it is a release the accountants
    already count, and it lets a replay prove that it drew the same batch and the same noise.

    Guarantee: the ledger never holds fewer steps than the weights have seen. A line is durable
    before `spend` returns and the optimizer moves only afterwards. A line torn by a kill is
    therefore of a step that no weights, and nobody, ever saw: it is cut off when the ledger is
    opened again, and the step is replayed with identical sampling and noise. A replayed step is not
    a new release: it must reproduce its line byte for byte.

    Args:
        path: the ledger file, created if missing. Hold the run's lock while using it.
        header: what every step is spent under: the mechanism as a mapping, a dataset fingerprint
            and the `key_fingerprint`. On a ledger that spent nothing yet it replaces the old one.

    Raises:
        LedgerMismatchError: the file was written under another header; names the fields.
        LedgerError: the file is damaged other than by a torn last line, or cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self._header: dict[str, Any] = canonical(header, "ledger header")
        first = canonical_json({"header": self._header, "ledger": LEDGER_VERSION}).encode() + b"\n"
        self._lines: list[bytes] = self._continue(first) if path.exists() else []
        if not self._lines:
            _write_or_explain(path, first)
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND)
        # A line that a dying process left in the page cache must be durable before it is trusted.
        os.fsync(self._descriptor)
        fsync_directory(path.parent)

    def _continue(self, first: bytes) -> list[bytes]:
        lines, torn = _whole_lines(self._path)
        contents = _parse(self._path, lines)
        if not contents.entries:
            return []
        before, now = (h.get("noise_version", 1) for h in (contents.header, self._header))
        if before != now:
            raise LedgerMismatchError(
                f"{self._path} spent {contents.steps_spent} steps with noise of version {before}; "
                f"this dpft draws version {now}, so a replayed step would be a second release. "
                f"Go on with the version of dpft that began the run, or {START_OVER}"
            )
        if lines[0] != first:
            changed = differences(contents.header, self._header)
            listed = "\n  ".join(changed) or "format version or encoding"
            raise LedgerMismatchError(
                f"{self._path} spent {contents.steps_spent} steps under another header (old -> "
                f"new):\n  {listed}\nExpected the same mechanism, data and key. Undo the change "
                f"and run the same command again, or {START_OVER}"
            )
        if torn:
            os.truncate(self._path, sum(map(len, lines)))
        return lines[1:]

    @property
    def steps_spent(self) -> int:
        """Privatised steps on file: the number the accountants must be asked about."""
        return len(self._lines)

    def spend(self, step: int, **entry: Any) -> None:
        """Write down that ``step`` is being spent; call it before the optimizer moves the weights.

        Guarantee: when it returns, the step is counted, whatever happens next. When it raises, the
        weights must not be moved.

        Args:
            step: number of the step, from 0, without gaps. A step already on file is a replay.
            entry: what else to note: public values and noisy releases only.

        Raises:
            LedgerMismatchError: a replayed step differs from what is on file.
            LedgerError: a step was skipped, the entry holds what must stay private, or the disk
                refused; then this object takes no further step.
        """
        if self._descriptor is None:
            raise LedgerError(
                f"{self._path} is closed or failed before; expected an open ledger: run the same "
                f"command again"
            )
        private = noiseless_names(entry, f"step {step}")
        if private:
            raise LedgerError(
                f"ledger entry holds {', '.join(private)}, computed from private data without "
                f"noise; expected public values only: log it with MetricsLog, under private/"
            )
        line = self._encode(step, entry)
        if 0 <= step < self.steps_spent:
            self._replay(step, line)
            return
        if step != self.steps_spent:
            raise LedgerError(
                f"got step {step} for {self._path}; expected {self.steps_spent}, or an earlier one "
                f"as a replay: resume from the latest checkpoint at or below that step"
            )
        self._append(line)
        self._lines.append(line)

    def _encode(self, step: int, entry: Mapping[str, Any]) -> bytes:
        try:
            text = json.dumps(
                {"step": step, **entry}, sort_keys=True, separators=(",", ":"), allow_nan=False
            )
        except (TypeError, ValueError) as error:
            raise LedgerError(
                f"ledger entry of step {step} cannot be written ({error}); expected finite "
                f"numbers, strings, booleans, lists and mappings"
            ) from error
        return text.encode() + b"\n"

    def _replay(self, step: int, line: bytes) -> None:
        if self._lines[step] == line:
            return
        old, new = json.loads(self._lines[step]), json.loads(line)
        listed = "\n  ".join(differences(old, new)) or "spelling of the same values"
        raise LedgerMismatchError(
            f"step {step} was spent before and is not the same now (old -> new):\n  {listed}\n"
            f"Expected the replay to be identical: same data, code, machine, device and number of "
            f"threads. Restore them and run the same command again, or {START_OVER}"
        )

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        size = os.fstat(self._descriptor).st_size
        try:
            rest = line
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # The step is not spent: the caller never gets to move the weights.
            try:
                os.ftruncate(self._descriptor, size)
            finally:
                self.close()
            raise LedgerError(
                f"could not write step {self.steps_spent} to {self._path}: "
                f"{disk_report(self._path.parent, error)}. The step was not taken and nothing is "
                f"lost: free some space and run the same command again"
            ) from error

    def close(self) -> None:
        """Close the file; `spend` refuses from now on."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _whole_lines(path: Path) -> tuple[list[bytes], bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(
            f"{path} does not exist; expected the ledger of a run: check the path of the run"
        ) from None
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read ({error.strerror}); expected the ledger of a run: restore it "
            f"from a copy, or {START_OVER}"
        ) from error
    end = data.rfind(b"\n") + 1
    lines, torn = data[:end].splitlines(keepends=True), data[end:]
    # A power cut may keep the end of a line that was not synced yet, and lose blocks before it.
    # Each line is synced before the next one is written, so that this can be the last one only.
    if len(lines) > 1 and not torn and not _is_json(lines[-1]):
        torn = lines.pop()
    return lines, torn


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _parse(path: Path, lines: list[bytes]) -> LedgerContents:
    def damaged(number: int, why: str) -> LedgerError:
        return LedgerError(
            f"{path}, line {number}: {why}. Only its last line can be torn by a kill, so this file "
            f"was changed or the disk is failing: restore it from a copy, or {START_OVER}"
        )

    if not lines:
        # Unlike a step, the header is written atomically: no kill can leave it half there.
        raise damaged(1, "got no header, expected one")
    parsed: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line)
        except ValueError as error:
            raise damaged(number, f"not JSON ({error})") from error
        if not isinstance(value, dict):
            raise damaged(number, f"got a {type(value).__name__}, expected a mapping")
        if number > 1 and value.get("step") != number - 2:
            raise damaged(number, f"got step {value.get('step')!r}, expected {number - 2}")
        parsed.append(value)
    header = parsed[0].get("header")
    if parsed[0].get("ledger") != LEDGER_VERSION or not isinstance(header, dict):
        raise damaged(1, f"got no header of ledger version {LEDGER_VERSION}")
    return LedgerContents(header, parsed[1:])


def _write_or_explain(path: Path, first: bytes) -> None:
    try:
        write_atomic(path, first, mode=0o600)
    except OSError as error:
        raise LedgerError(
            f"could not create {path}: {disk_report(path.parent, error)}. Nothing was spent: free "
            f"some space and run the same command again"
        ) from error
