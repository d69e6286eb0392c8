"""The privacy ledger: what was spent, written before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.runs.atomic import write_atomic
from dpft.runs.closing import Closing
from dpft.runs.errors import START_OVER, LedgerError, LedgerMismatchError, LogError, disk_report
from dpft.runs.guard import noiseless_names
from dpft.runs.identity import canonical, canonical_json, differences
from dpft.runs.log import Log, damaged, read_log, spelled

LEDGER_VERSION = 1
_REMEDY = f"restore it from a copy, or {START_OVER}"


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
    with _as_ledger_error():
        entries = read_log(path, _REMEDY)
        first = entries.pop(0) if entries else {}
        if first.get("ledger") != LEDGER_VERSION or not isinstance(first.get("header"), dict):
            raise damaged(path, 1, f"got no header of ledger version {LEDGER_VERSION}", _REMEDY)
        for step, entry in enumerate(entries):
            if entry.get("step") != step:
                why = f"got step {entry.get('step')!r}, expected {step}"
                raise damaged(path, step + 2, why, _REMEDY)
    return LedgerContents(first["header"], entries)


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
        self._entries = self._continue() if path.exists() else []
        if not self._entries:
            _write_header(path, self._header)
        with _as_ledger_error():
            self._log = Log(path, _REMEDY)

    def _continue(self) -> list[dict[str, Any]]:
        contents = read_ledger(self._path)
        before, now = (h.get("noise_version", 1) for h in (contents.header, self._header))
        if contents.entries and before != now:
            raise LedgerMismatchError(
                f"{self._path} spent {contents.steps_spent} steps with noise of version {before}; "
                f"this dpft draws version {now}, so a replayed step would be a second release. "
                f"Go on with the version of dpft that began the run, or {START_OVER}"
            )
        if contents.entries and spelled(contents.header) != spelled(self._header):
            listed = "\n  ".join(differences(contents.header, self._header))
            raise LedgerMismatchError(
                f"{self._path} spent {contents.steps_spent} steps under another header (old -> "
                f"new):\n  {listed}\nExpected the same mechanism, data and key. Undo the change "
                f"and run the same command again, or {START_OVER}"
            )
        return contents.entries

    @property
    def steps_spent(self) -> int:
        """Privatised steps on file: the number the accountants must be asked about."""
        return len(self._entries)

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
                is full; then this object takes no further step.
        """
        private = noiseless_names(entry, f"step {step}")
        if private:
            raise LedgerError(
                f"ledger entry holds {', '.join(private)}, computed from private data without "
                f"noise; expected public values only: log it with MetricsLog, under private/"
            )
        if 0 <= step < self.steps_spent:
            self._replay(step, {"step": step, **entry})
            return
        if step != self.steps_spent:
            raise LedgerError(
                f"got step {step} for {self._path}; expected {self.steps_spent}, or an earlier one "
                f"as a replay: resume from the latest checkpoint at or below that step"
            )
        with _as_ledger_error(f"step {step} was not taken: "):
            self._log.append({"step": step, **entry})
        self._entries.append({"step": step, **entry})

    def _replay(self, step: int, entry: Mapping[str, Any]) -> None:
        old = self._entries[step]
        with _as_ledger_error():
            equal = spelled(old) == spelled(entry)
        if not equal:
            listed = "\n  ".join(differences(old, entry)) or "spelling of the same values"
            raise LedgerMismatchError(
                f"step {step} was spent before and is not the same now (old -> new):\n  {listed}\n"
                f"Expected the replay to be identical: same data, code, machine, device and number "
                f"of threads. Restore them and run the same command again, or {START_OVER}"
            )

    def close(self) -> None:
        """Close the file; `spend` refuses from now on."""
        self._log.close()


@contextmanager
def _as_ledger_error(prefix: str = "") -> Iterator[None]:
    try:
        yield
    except LogError as error:
        raise LedgerError(f"{prefix}{error}") from error


def _write_header(path: Path, header: Mapping[str, Any]) -> None:
    first = canonical_json({"header": header, "ledger": LEDGER_VERSION}) + "\n"
    try:
        # Unlike a step, atomically: no kill can leave it half there.
        write_atomic(path, first, mode=0o600)
    except OSError as error:
        raise LedgerError(
            f"could not create {path}: {disk_report(path.parent, error)}. Nothing was spent: free "
            f"some space and run the same command again"
        ) from error
