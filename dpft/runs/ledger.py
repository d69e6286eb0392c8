"""The privacy ledger: what was spent, written before it is used."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpft.runs.atomic import write_atomic
from dpft.runs.closing import Closing
from dpft.runs.errors import START_OVER, LedgerError, LedgerMismatchError, LogError, disk_report
from dpft.runs.guard import noiseless_names
from dpft.runs.identity import canonical, canonical_json, differences
from dpft.runs.log import Log, damaged, read_lines, spelled

LEDGER_VERSION = 2
_REMEDY = f"restore it from a copy, or {START_OVER}"
# What a header may say otherwise if a noise epoch begins; see `Ledger.begin_epoch`.
_COMPUTE = "compute"
# In a summary (`dpft.runs.summary`), the line in place of those that are left out.
OMITTED, WHOLE = "omitted", "sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}")
# What each line begins with: 128 bits of SHA-256 over this field of the line before and the rest.
_CHAIN = b'{"chain":"%s",'
_HEX = slice(len(_CHAIN) - 4, len(_CHAIN) + 28)
# What a header must say for epsilon to be computed from it, and for how many lines at once.
_ACCOUNTED, _AT_ONCE = frozenset({"sampling_rate", "noise_multiplier", "delta"}), 4096


@dataclass(frozen=True)
class Epoch:
    """A stretch of a run whose batches and noise come from a key of their own.

    Attributes:
        number: 0 for what a run begins with.
        compute: what computed its steps: device, threads, ranks. None: the header says nothing.
        start: its first step.
        repeated: steps from ``start`` on that the epoch before had released: what it releases of
            them are further releases.
    """

    number: int
    compute: Any
    start: int
    repeated: int

    @property
    def statement(self) -> str:
        """All of the above as text, the same always: keys are derived from it."""
        return canonical_json(self._line())

    def _line(self) -> dict[str, Any]:
        return {
            "epoch": self.number,
            _COMPUTE: self.compute,
            "from": self.start,
            "repeated": self.repeated,
        }


@dataclass(frozen=True)
class LedgerContents:
    """What a ledger file says.

    Attributes:
        header: what every step was spent under: mechanism, data and key.
        entries: one mapping per release, in the order of time. The steps of an epoch are its
            ``start``, ``start + 1`` and so on, and have its number as ``epoch`` behind the first.
        further: the epochs behind the first one, which not many runs have.
        omitted: steps whose lines a summary leaves out; ``entries`` begins behind them.
        whole: SHA-256 of the ledger that it is a summary of.
        chain: the last line's, which the next line's follows from.
    """

    header: dict[str, Any]
    entries: list[dict[str, Any]]
    further: list[Epoch] = field(default_factory=list)
    omitted: int = 0
    whole: str | None = None
    chain: bytes = b""

    @property
    def steps_spent(self) -> int:
        """Releases on file, those of repeated steps too: what the accountants are asked about."""
        return self.omitted + len(self.entries)

    @property
    def epsilon(self) -> float | None:
        """What the releases on file spent by Renyi accounting; None if the last does not say."""
        return self.entries[-1].get("epsilon_rdp") if self.entries else 0.0

    @property
    def epoch(self) -> Epoch:
        """The latest."""
        return self.further[-1] if self.further else Epoch(0, self.header.get(_COMPUTE), 0, 0)

    @property
    def next_step(self) -> int:
        """Number of the step behind the last one of the latest epoch."""
        here = self.epoch
        if self.entries and self.entries[-1].get("epoch", 0) == here.number:
            return int(self.entries[-1]["step"]) + 1
        return here.start if self.further else self.omitted

    @property
    def repeated(self) -> int:
        """Releases on file, or to come, beyond one for each step of the run."""
        return sum(epoch.repeated for epoch in self.further)


def read_ledger(path: Path) -> LedgerContents:
    """Read a ledger, or a summary of one, without changing it.

    A torn last line does not count as spent.

    Raises:
        LedgerError: the file is missing or damaged anywhere but in a torn last line, or an
            epsilon is not the one of the header's mechanism after so many releases.
    """
    with _as_ledger_error():
        entries, chain = list[dict[str, Any]](), b""
        for number, (entry, line) in enumerate(read_lines(path, _REMEDY), start=1):
            expected = _chained(chain, b"{" + line[_HEX.stop + 2 :])
            if number == 1 and entry.get("ledger") != LEDGER_VERSION:
                break
            if line != expected:
                got, due = line[_HEX].decode(errors="replace"), expected[_HEX].decode()
                told = f"got chain {got!r}, expected {due} by this line's bytes and the line before"
                raise damaged(path, number, told, _REMEDY)
            chain = line[_HEX]
            entries.append({name: value for name, value in entry.items() if name != "chain"})
        first = entries.pop(0) if entries else {}
        if not isinstance(first.get("header"), dict):
            raise damaged(path, 1, f"got no header of ledger version {LEDGER_VERSION}", _REMEDY)
        held = LedgerContents(first["header"], [], chain=chain)
        if entries and OMITTED in entries[0]:
            if why := _wrong_summary(entries):
                raise damaged(path, 2, why, _REMEDY)
            left_out = entries.pop(0)
            held = replace(held, omitted=left_out[OMITTED], whole=left_out[WHOLE])
        for number, entry in enumerate(entries, start=3 if held.omitted else 2):
            if why := _take(held, entry):
                raise damaged(path, number, why, _REMEDY)
        _check_epsilons(path, held)
    return held


def chained_lines(header: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a ledger with this header and these entries.

    Raises:
        LogError: JSON cannot hold an entry.
    """
    text = canonical_json({"header": header, "ledger": LEDGER_VERSION}) + "\n"
    lines = [_chained(b"", text.encode())]
    for entry in entries:
        lines.append(_chained(lines[-1][_HEX], spelled(entry)))
    return b"".join(lines)


def _chained(before: bytes, line: bytes) -> bytes:
    """Return a line, which is not empty, with the chain that follows from the one before."""
    chain = hashlib.sha256(before + line).hexdigest()[:32].encode()
    return _CHAIN % chain + line[1:]


def _check_epsilons(path: Path, held: LedgerContents) -> None:
    """Compare the epsilon of each line with the accountant's for the mechanism of the header.

    Raises:
        LogError: at the first line where they differ, in whichever direction.
    """
    mechanism = held.header.get("mechanism")
    stated = [(i, e["epsilon_rdp"]) for i, e in enumerate(held.entries) if "epsilon_rdp" in e]
    if not stated or not isinstance(mechanism, Mapping) or not mechanism.keys() >= _ACCOUNTED:
        return
    import numpy as np  # and the accountant, which not every reader of a run needs

    from dpft.privacy.accounting import rdp_curve, spent

    try:
        delta = float(mechanism["delta"])
        curve = rdp_curve(**spent(mechanism))
    except (TypeError, ValueError) as error:
        raise damaged(path, 1, f"no mechanism to account for ({error})", _REMEDY) from error
    for start in range(0, len(stated), _AT_ONCE):
        part = stated[start : start + _AT_ONCE]
        steps = np.array([held.omitted + index + 1.0 for index, _ in part])
        computed = curve.epsilons(steps, np.full_like(steps, delta))
        for (index, epsilon), due in zip(part, computed.tolist(), strict=True):
            number = isinstance(epsilon, int | float)
            if not (number and math.isclose(epsilon, due, rel_tol=1e-6, abs_tol=1e-9)):
                line = 2 + index + held.entries[index].get("epoch", 0) + (held.omitted > 0)
                why = f"got epsilon_rdp {epsilon!r}, expected {due:.6g} by Renyi accounting"
                raise damaged(path, line, why, _REMEDY)


def _wrong_summary(lines: list[dict[str, Any]]) -> str | None:
    """What is wrong with the lines behind the header of a summary, if anything is."""
    count, digest = lines[0][OMITTED], lines[0].get(WHOLE)
    if type(count) is not int or count < 1:
        return f"got {count!r} steps that are left out, expected one or more"
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return f"got the digest {digest!r}, expected a SHA-256"
    if len(lines) != 2 or "step" not in lines[1]:
        return f"got {len(lines) - 1} lines behind it, expected the last step alone"
    return None


def _take(held: LedgerContents, line: dict[str, Any]) -> str | None:
    """Add a line; what is wrong with it, if anything is."""
    expected = held.next_step
    if "step" not in line and "epoch" in line:
        start = line.get("from")
        if type(start) is not int or not 0 <= start <= expected:
            return f"got a noise epoch from step {start!r}, expected 0 to {expected}"
        epoch = Epoch(held.epoch.number + 1, line.get(_COMPUTE), start, expected - start)
        if not held.entries or any(line.get(k) != v for k, v in epoch._line().items()):
            why = f"noise epoch {epoch.number} with {epoch.repeated} repeated steps"
            return f"got {spelled(line).decode().strip()}, expected {why}"
        held.further.append(epoch)
        return None
    if line.get("step") != expected:
        return f"got step {line.get('step')!r}, expected {expected}"
    if line.get("epoch", 0) != held.epoch.number:
        return f"got a step of epoch {line.get('epoch', 0)!r}, expected {held.epoch.number}"
    held.entries.append(line)
    return None


class Ledger(Closing):
    """Append-only record of the privatised steps of one run, one JSON line each.

    Steps are counted from 0, as the samplers count them. There are no times and nothing
    of the data in it, so a run that was killed and continued leaves the same bytes as one that was
    not. A useful entry is a digest of the *noisy* gradient: it is a release the accountants
    already count, and it lets a replay prove that it drew the same batch and the same noise.

    Guarantee: the ledger never holds fewer releases than anybody has seen. A line is durable
    before `spend` returns and the optimizer moves only afterwards. A line torn by a kill is
    therefore of a step that no weights, and nobody, ever saw: it is cut off when the ledger is
    opened again, and the step is replayed with identical sampling and noise. A replayed step is not
    a new release: it must reproduce its line byte for byte.

    Each line begins with ``chain``, a hash over its own bytes and the ``chain`` of the line before,
    and its epsilon is the accountant's: a line that was changed afterwards is refused on reading.

    Where a step cannot be computed as it was, on another number of ranks for instance, it must not
    be replayed: one noise on two sums that differ by rounding is a release of their difference.
    `begin_epoch` begins a *noise epoch*. All that is random in its steps comes from a key that
    follows from the epoch's statement, and each of its steps is one more release with a line of its
    own. No line is ever taken back, so `steps_spent` counts all releases of all epochs.

    Args:
        path: the ledger file, created if missing. Hold the run's lock while using it.
        header: what every step is spent under: the mechanism as a mapping, a dataset fingerprint
            and the `key_fingerprint`. On a ledger that spent nothing yet it replaces the old one.
            If ``compute`` alone differs from the latest epoch's, nothing may be spent before
            `begin_epoch`.

    Raises:
        LedgerMismatchError: the file was written under another header; names the fields.
        LedgerError: the file is damaged other than by a torn last line, or cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self._header: dict[str, Any] = canonical(header, "ledger header")
        self._held = self._continue() if path.exists() else LedgerContents(self._header, [])
        if not self._held.entries:
            chain = _write_header(path, self._header)
            self._held = LedgerContents(self._header, [], chain=chain)
        with _as_ledger_error():
            self._log = Log(path, _REMEDY)

    def _continue(self) -> LedgerContents:
        contents = read_ledger(self._path)
        if contents.omitted:
            raise LedgerError(
                f"{self._path} is a summary, which leaves {contents.omitted} steps out; expected "
                f"the whole ledger: {_REMEDY}"
            )
        if not contents.entries:
            return contents
        held = dict(contents.header)
        if isinstance(held.get(_COMPUTE), dict) and isinstance(self._header.get(_COMPUTE), dict):
            held[_COMPUTE] = self._header[_COMPUTE]
        if spelled(held) != spelled(self._header):
            if _COMPUTE in held:  # what differs there is told too
                held[_COMPUTE] = contents.epoch.compute
            listed = "\n  ".join(differences(held, self._header))
            raise LedgerMismatchError(
                f"{self._path} spent {contents.steps_spent} steps under another header (old -> "
                f"new):\n  {listed}\nExpected the same mechanism, data and key, and for the same "
                f"noise_version the dpft that began the run. Undo the change and run the same "
                f"command again, or {START_OVER}"
            )
        return contents

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def steps_spent(self) -> int:
        """Releases on file: the number the accountants must be asked about."""
        return self._held.steps_spent

    @property
    def next_step(self) -> int:
        """Number of the first step that the latest epoch has not released."""
        return self._held.next_step

    @property
    def repeated(self) -> int:
        """Releases, on file or to come, beyond one for each step of the run."""
        return self._held.repeated

    @property
    def further(self) -> tuple[Epoch, ...]:
        """The epochs behind the first one."""
        return tuple(self._held.further)

    @property
    def changes(self) -> list[str]:
        """What of ``compute`` is not as in the latest epoch, as lines ``threads: 1 -> 2``."""
        before, now = self._held.epoch.compute, self._header.get(_COMPUTE)
        return [] if before == now else differences(before or {}, now or {})

    def repeats(self, step: int) -> int | None:
        """How many steps are released again if the run goes on at ``step``; None: they are replays.

        They are replays if the latest epoch released them, and its ``compute`` is this one's.
        Otherwise going on needs `begin_epoch`, also for 0.
        """
        if not self.changes and step >= self._held.epoch.start:
            return None
        return self.next_step - step

    def begin_epoch(self, step: int, *, charged: int, **entry: Any) -> None:
        """Begin a noise epoch, in which all steps from ``step`` on are new releases.

        Guarantee: the epoch is durable before this returns; its key follows from what is written.
        A kill behind it leaves an epoch of no steps, which goes on or is followed by another one.

        Args:
            step: that the weights in hand have behind them, at most `next_step`.
            charged: how many steps the caller's accounting counts once more: `repeats`.
            entry: what else to note, as in `spend`.

        Raises:
            LedgerError: there is nothing to repeat here, or the disk is full.
        """
        repeated = self.repeats(step)
        if repeated is None or repeated < 0 or step < 0 or repeated != charged:
            raise LedgerError(
                f"got a noise epoch from step {step} with {charged} repeated steps for "
                f"{self._path}, which repeats {repeated}; expected the same number, and an epoch "
                f"only where steps cannot be replayed: resume from the latest checkpoint"
            )
        latest = self._held.epoch
        epoch = Epoch(latest.number + 1, self._header.get(_COMPUTE), step, repeated)
        self._append({**entry, **epoch._line()}, "nothing was repeated: ")
        self._held.further.append(epoch)

    def spend(self, step: int, **entry: Any) -> None:
        """Write down that ``step`` is being spent; call it before the optimizer moves the weights.

        Guarantee: when it returns, the step is counted, whatever happens next. When it raises, the
        weights must not be moved.

        Args:
            step: number of the step, from 0, without gaps. A step that the latest epoch has on file
                is a replay.
            entry: what else to note: public values and noisy releases only.

        Raises:
            LedgerMismatchError: a replayed step differs from what is on file, or no noise epoch was
                begun although ``compute`` differs.
            LedgerError: a step was skipped, the entry holds what must stay private, or the disk
                is full; then this object takes no further step.
        """
        private = noiseless_names(entry, f"step {step}")
        if private:
            raise LedgerError(
                f"ledger entry holds {', '.join(private)}, computed from private data without "
                f"noise; expected public values only: log it with MetricsLog, under private/"
            )
        if self.changes:
            listed = "\n  ".join(self.changes)
            raise LedgerMismatchError(
                f"{self._path} spent {self.steps_spent} steps under another header (old -> "
                f"new):\n  {listed}\nExpected the same, or a noise epoch for what is repeated. "
                f"Undo the change and run the same command again, or {START_OVER}"
            )
        epoch = self._held.epoch
        line = {**entry, "step": step, **({"epoch": epoch.number} if epoch.number else {})}
        if epoch.start <= step < self.next_step:
            self._replay(step, line)
            return
        if step != self.next_step:
            raise LedgerError(
                f"got step {step} for {self._path}; expected {self.next_step}, or an earlier one "
                f"as a replay, from {epoch.start} on: resume from the latest checkpoint at or "
                f"below that step"
            )
        self._append(line, f"step {step} was not taken: ")
        self._held.entries.append(line)

    def _append(self, entry: Mapping[str, Any], on_error: str) -> None:
        with _as_ledger_error(on_error):
            line = _chained(self._held.chain, spelled(entry))
            self._log.append_line(line)
        self._held = replace(self._held, chain=line[_HEX])

    def _replay(self, step: int, line: Mapping[str, Any]) -> None:
        old = self._held.entries[step - self.next_step]
        with _as_ledger_error():
            equal = spelled(old) == spelled(line)
        if not equal:
            listed = "\n  ".join(differences(old, line)) or "spelling of the same values"
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


def _write_header(path: Path, header: Mapping[str, Any]) -> bytes:
    """Write the first line, and return its chain."""
    first = chained_lines(header, [])
    try:
        # Unlike a step, atomically: no kill can leave it half there.
        write_atomic(path, first, mode=0o600)
    except OSError as error:
        raise LedgerError(
            f"could not create {path}: {disk_report(path.parent, error)}. Nothing was spent: free "
            f"some space and run the same command again"
        ) from error
    return first[_HEX]
