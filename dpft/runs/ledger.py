"""The privacy ledger (what was spent, written before it is used), and the secret key of a run."""

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpft.config.errors import (
    START_OVER,
    LedgerError,
    LedgerMismatchError,
    LogError,
    NoiseKeyLostError,
)
from dpft.runs.atomic import Closing, disk_report, write_atomic
from dpft.runs.identity import canonical, canonical_json, differences, digest_of
from dpft.runs.log import REMEDY, Log, damaged, noiseless_names, read_lines, read_log, spelled

LEDGER_VERSION = 2
_REMEDY = f"restore it from a copy, or {START_OVER}"
# A field of the header, and of the first line of a new stretch; see `Stretch`.
_COMPUTE = "compute"
# Each line starts with 128 bits of SHA-256 over this field of the line before and its own rest.
_CHAIN = b'{"chain":"%s",'
_HEX = slice(len(_CHAIN) - 4, len(_CHAIN) + 28)


@dataclass(frozen=True)
class Stretch:
    """Consecutive positions of a ledger whose steps one set of devices computed in a row."""

    compute: Any  # the devices, threads, ranks and so on; None if the header does not say
    position: int = 0  # number of releases before its first line
    step: int = 0  # of its first line
    chain: bytes = b""  # of the line before it

    @property
    def repeated(self) -> int:
        """Releases of the ledger, up to the end of the stretch, beyond one for each step."""
        return self.position - self.step

    def key(self, key: bytes) -> bytes:
        """Return the key that sampling, noise, dropout and users' draws of its steps follow from.

        Guarantee: a step's draws follow from the run's key and the step's position alone. The first
        stretch has the run's key. The key of a later one follows from its start, what computes it
        and, by the chain, every line before it: no two positions share a batch or noise, nor do the
        positions of two copies of a run that continue on different devices.
        """
        if not self.position:
            return key
        from dpft.privacy.keys import derive  # and NumPy, which readers of runs do not need

        start = canonical_json({_COMPUTE: self.compute, "step": self.step})
        return derive(key, "stretch", self.chain.decode(), start)


@dataclass
class LedgerContents:
    """The content of a ledger; its ``stretches`` are those after the first."""

    header: dict[str, Any]  # what every step was spent under: mechanism, data and key
    # A release each; the first of a stretch has its ``compute``.
    entries: list[dict[str, Any]] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    chain: bytes = b""  # of the last line, which the next line's follows from

    @property
    def steps_spent(self) -> int:
        """Releases on file, repeated steps included: what the accountants are asked about."""
        return len(self.entries)

    @property
    def epsilon(self) -> float | None:
        """Epsilon of the releases on file by Renyi accounting; None if the last does not say."""
        return self.entries[-1].get("epsilon_rdp") if self.entries else 0.0

    @property
    def stretch(self) -> Stretch:
        """The latest stretch."""
        return self.stretches[-1] if self.stretches else Stretch(self.header.get(_COMPUTE))

    @property
    def next_step(self) -> int:
        """Number of the step after the last one on file, in the latest stretch."""
        return self.steps_spent - self.stretch.repeated


def read_ledger(path: Path) -> LedgerContents:
    """Read a ledger without changing it; a torn last line does not count as spent."""
    held: LedgerContents | None = None
    with _as_ledger_error():
        for number, (entry, line) in enumerate(read_lines(path, _REMEDY), start=1):
            before = held.chain if held else b""
            expected = _chained(before, b"{" + line[_HEX.stop + 2 :])
            if number == 1 and not (
                entry.get("ledger") == LEDGER_VERSION and isinstance(entry.get("header"), dict)
            ):
                break
            if line != expected:
                got, due = line[_HEX].decode(errors="replace"), expected[_HEX].decode()
                why = f"got chain {got!r}, expected {due} by this line's bytes and the line before"
                raise damaged(path, number, why, _REMEDY)
            if held is None:
                held = LedgerContents(entry["header"])
            else:
                del entry["chain"]
                step, due_step = entry.get("step"), held.next_step
                if _COMPUTE in entry and held.entries:
                    if type(step) is not int or not 0 <= step <= due_step:
                        why = f"got step {step!r} with compute, expected 0 to {due_step}"
                        raise damaged(path, number, why, _REMEDY)
                    held.stretches.append(Stretch(entry[_COMPUTE], held.steps_spent, step, before))
                elif step != due_step:
                    why = f"got step {step!r}, expected {due_step}"
                    raise damaged(path, number, why, _REMEDY)
                held.entries.append(entry)
            held.chain = line[_HEX]
        if held is None:
            raise damaged(path, 1, f"got no header of ledger version {LEDGER_VERSION}", _REMEDY)
    return held


def chained_lines(header: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a ledger with this header and these entries."""
    text = canonical_json({"header": header, "ledger": LEDGER_VERSION}) + "\n"
    lines = [_chained(b"", text.encode())]
    for entry in entries:
        lines.append(_chained(lines[-1][_HEX], spelled(entry)))
    return b"".join(lines)


def _chained(before: bytes, line: bytes) -> bytes:
    """Return a line with the chain that follows from the chain of the line before."""
    chain = hashlib.sha256(before + line).hexdigest()[:32].encode()
    return _CHAIN % chain + line[1:]


class Ledger(LedgerContents, Closing):
    """Append-only record of the privatised steps of one run, one JSON line each.

    Steps are counted from 0. The file holds no times and nothing of the data, so a run that was
    killed and continued leaves the same bytes as one that was not. A digest of the *noisy* gradient
    is a useful entry: it is a release that is counted already, and it lets a replay prove that it
    drew the same batch and noise.

    Guarantee: the ledger never holds fewer releases than were seen. A line is durable before
    `spend` returns and the optimizer moves only afterwards. A line torn by a kill is therefore of a
    step that was never seen: it is cut off when the ledger is opened again, and the step is
    replayed with identical sampling and noise. A replayed step is not a new release: it must
    reproduce its line byte for byte. A changed line is refused on reading: each starts with
    ``chain``, a hash over its own bytes and the ``chain`` of the line before.

    Where a step cannot be computed as it was, for instance on another number of ranks, it must not
    be replayed: one noise on two sums that differ by rounding is a release of their difference.
    `go_on` then continues at the end of the ledger: the repeated steps are new releases with draws
    and lines of their own, the first of which states ``compute``. No line is ever removed.

    Args:
        path: the ledger file, created if missing. Hold the run's lock while using it.
        header: what every step is spent under: the mechanism as a mapping, a dataset fingerprint
            and the `key_fingerprint`. On a ledger that spent nothing yet it replaces the old one.
            If ``compute`` alone differs from the latest stretch's, nothing may be spent before
            `go_on`.

    Raises:
        LedgerMismatchError: the file was written under another header; names the fields.
        LedgerError: the file is damaged other than by a torn last line, or cannot be written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        asked: dict[str, Any] = canonical(header, "ledger header")
        self._compute = asked.get(_COMPUTE)
        held = read_ledger(path) if path.exists() else LedgerContents(asked)
        super().__init__(held.header, held.entries, held.stretches, held.chain)
        if self.entries:
            self._check_header(asked)
        else:
            first = chained_lines(asked, [])
            try:
                # Unlike a step, atomically: no kill can leave it half there.
                write_atomic(path, first, mode=0o600)
            except OSError as error:
                raise LedgerError(
                    f"could not create {path}: {disk_report(path.parent, error)}. Nothing was "
                    "spent: free some space and run the same command again"
                ) from error
            self.header, self.chain = asked, first[_HEX]
        with _as_ledger_error():
            self._log = Log(path, _REMEDY)

    def _check_header(self, asked: Mapping[str, Any]) -> None:
        """Refuse to add steps under another header; ``compute`` is for `go_on` to check."""
        held = dict(self.header)
        if isinstance(held.get(_COMPUTE), dict) and isinstance(self._compute, dict):
            held[_COMPUTE] = self._compute
        if spelled(held) == spelled(asked):
            return
        if _COMPUTE in held:  # what differs there is listed too
            held[_COMPUTE] = self.stretch.compute
        listed = "\n  ".join(differences(held, asked))
        raise LedgerMismatchError(
            f"{self.path} spent {self.steps_spent} steps under another header (old -> new):\n"
            f"  {listed}\nExpected the same mechanism, data and key, and for the same "
            f"noise_version the dpft that started the run. Undo the change and run the same "
            f"command again, or {START_OVER}"
        )

    def go_on(self, step: int) -> Stretch:
        """Set which step comes next, as a replay or as a new release at the end of the ledger.

        It is a replay, or the step that is due, if it is one of the latest stretch and ``compute``
        is that stretch's. Otherwise a new stretch starts, which is on file with its first line.

        Args:
            step: that the current weights have behind them.

        Returns:
            The stretch of the step, from which the keys of all draws follow.

        Raises:
            LedgerMismatchError: the weights are ahead of the ledger.
        """
        self.stretches = [one for one in self.stretches if one.position < self.steps_spent]
        if step > self.next_step:
            raise LedgerMismatchError(
                f"the checkpoint has {step} steps behind it but {self.path} holds "
                f"{self.next_step}; expected at least {step}: the ledger lost lines and "
                f"would under-report what was spent. Restore it, or {START_OVER}"
            )
        if self._compute != self.stretch.compute or step < self.stretch.step:
            self.stretches.append(Stretch(self._compute, self.steps_spent, step, self.chain))
        return self.stretch

    def spend(self, step: int, **entry: Any) -> None:
        """Record that ``step`` is being spent; call it before the optimizer moves the weights.

        Guarantee: when it returns, the step is counted, whatever happens next. When it raises, the
        weights must not be moved.

        Args:
            step: number of the step, from 0, without gaps. A step that the stretch has on file is a
                replay.
            entry: what else to note: public values and noisy releases only.

        Raises:
            LedgerMismatchError: a replayed step differs from what is on file, or ``compute`` from
                the stretch's, since `go_on` was not called.
            LedgerError: a step was skipped, the entry holds what must stay private, or the disk
                is full; then this object takes no further step.
        """
        if private := noiseless_names(entry, f"step {step}"):
            raise LedgerError(
                f"ledger entry holds {', '.join(private)}, computed from private data without "
                f"noise; expected public values only: log it with MetricsLog, under private/"
            )
        stretch, compute = self.stretch, self._compute
        if stretch.compute != compute:
            listed = ", ".join(differences(stretch.compute or {}, compute or {}))
            raise LedgerMismatchError(f"{self.path} was not asked to go on with {listed}")
        place = step + stretch.repeated
        if step < stretch.step or place > self.steps_spent:
            raise LedgerError(
                f"got step {step} for {self.path}; expected {self.next_step}, or an earlier one "
                f"as a replay, from {stretch.step} on: resume from the latest checkpoint at or "
                f"below that step"
            )
        line = {**entry, "step": step}
        if place == stretch.position > 0:
            line[_COMPUTE] = compute
        with _as_ledger_error(f"step {step} was not taken: "):
            text = spelled(line)
            if place < self.steps_spent:
                old = self.entries[place]
                if spelled(old) == text:
                    return
                listed = "\n  ".join(differences(old, line)) or "spelling of the same values"
                raise LedgerMismatchError(
                    f"step {step} was spent before and is not the same now (old -> new):\n  "
                    f"{listed}\nExpected the replay to be identical: same data, code, machine, "
                    "device and number of threads. Restore them and run the same command again, "
                    f"or {START_OVER}"
                )
            written = _chained(self.chain, text)
            self._log.append_line(written)
        self.chain = written[_HEX]
        self.entries.append(line)

    def close(self) -> None:
        """Close the file; `spend` refuses from now on."""
        self._log.close()


@contextmanager
def _as_ledger_error(prefix: str = "") -> Iterator[None]:
    try:
        yield
    except LogError as error:
        raise LedgerError(f"{prefix}{error}") from error


def check_ledger(folder: Path, planned: int) -> LedgerContents | None:
    """Return the content of the ledger of a run of ``planned`` steps; None if there is none.

    Raises:
        LedgerMismatchError: it counts fewer steps than were spent: it, or lines of it, are gone.
        LedgerError: it is damaged.
    """
    file = folder / "ledger.jsonl"
    held = read_ledger(file) if file.exists() else None
    steps, shown_by = steps_evident(folder, planned)
    if steps > (held.steps_spent if held else 0):
        raise LedgerMismatchError(
            f"{file} {f'holds {held.steps_spent} steps' if held else 'is gone'}, but {shown_by} "
            f"shows {steps}; expected at least as many: the ledger lost lines and would "
            f"under-report what was spent. Put the ledger back from a copy, or {START_OVER}"
        )
    return held


def steps_evident(folder: Path, planned: int = 0) -> tuple[int, str]:
    """Return how many steps a run has spent at least by its other files, and the name of one.

    Each of these files is written after the line of the step in the ledger is durable. ``planned``
    is the number of steps that the run is to take.
    """
    metrics = "private/metrics.jsonl"
    logged = (e.get("position", e.get("step")) for e in read_log(folder / metrics, REMEDY))
    found = [(0, ""), *((1 + last, metrics) for last in logged if isinstance(last, int))]
    for pattern in ("checkpoints/step-*", "checkpoint-*/dpft.json"):
        for path in folder.glob(pattern):
            name = path.relative_to(folder).as_posix()
            match = re.search(r"-(\d+)(/dpft\.json)?$", name)
            found.append((int(match[1]) if match else 0, name))
    if (made := made_at_the_end(folder)) is not None:
        found.append((planned, made))
    return max(found, key=lambda one: one[0])


def made_at_the_end(folder: Path) -> str | None:
    """Return the name of something in a run's folder that is made after its last step, if any."""
    for name in ("record.json", "DONE", "model", "generations"):
        path = folder / name
        if any(path.iterdir()) if path.is_dir() else path.exists():
            return name
    return None


KEY_BYTES = 32


def key_from_seed(seed: int) -> bytes:
    """Return the key of an explicit seed: repeatable, hence no secret."""
    return hashlib.sha256(b"dpft-noise-seed" + str(int(seed)).encode()).digest()


def key_fingerprint(key: bytes) -> str:
    """Return 16 hex characters that identify a key without revealing it."""
    return hashlib.sha256(b"fingerprint" + key).hexdigest()[:16]


def keyed_fingerprint(key: bytes, fingerprint: str) -> str:
    """Return a dataset fingerprint that only the key's holder can compute (HMAC-SHA256, 16 hex).

    A plain hash of private records is itself a noiseless release: an attacker who knows all records
    but one can try values for the last. Under a secret key the tag says only "same data as before"
    to the run that wrote it.
    """
    return hmac.new(key, f"dataset:{fingerprint}".encode(), hashlib.sha256).hexdigest()[:16]


def run_key(
    stored: bytes, held: LedgerContents | None, header: Mapping[str, Any], settings: str = ""
) -> bytes:
    """Return the key that the batches, the noise and all other draws of a run's steps follow from.

    Guarantee: runs that differ in their header or settings share no noise, even if one was started
    with the stored key of the other after its ledger was deleted. Otherwise the difference of their
    releases would be one of sums without noise, which neither ledger counts.

    Args:
        stored: the run's secret.
        held: the run's ledger, if there is one. If it counts a release, its header is used, whose
            ``compute`` is what the run started with; the keys of later stretches follow from this.
        header: of a ledger that starts now.
        settings: a digest of the settings that the header lacks.
    """
    from dpft.privacy.keys import derive  # and NumPy, which readers of runs do not need

    used = held.header if held is not None and held.entries else header
    return derive(stored, "run", settings, digest_of(used))


def stored_key(path: Path, *, steps_spent: int) -> bytes:
    """Return the run's secret, created from the system's entropy on first use.

    Guarantee: a key is durable before it is returned, so no step can be spent with a key that a
    kill forgets; and a key is never replaced once a step was spent with it, since a replayed step
    with fresh noise is a second release of the same step that no ledger line counts.

    Raises:
        NoiseKeyLostError: steps were spent and the key is missing or damaged.
    """
    problem = "is missing"
    if path.exists():
        text = path.read_text(encoding="ascii", errors="replace").strip()
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) == KEY_BYTES:
            path.chmod(0o600)  # a copied folder may have lost it
            return key
        problem = f"holds no key (got {len(text)} characters, expected {2 * KEY_BYTES} hex digits)"
    if steps_spent:
        raise NoiseKeyLostError(
            f"{path} {problem}, but the ledger says that {steps_spent} steps were spent with it. "
            f"Continuing would need fresh noise for steps that are already spent. Put the key file "
            f"back, or {START_OVER}"
        )
    key = os.urandom(KEY_BYTES)
    write_atomic(path, key.hex() + "\n", mode=0o600)
    return key
