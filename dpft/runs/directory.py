"""The folder of one run: its files, who may use it, and whether it is the same run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.config.errors import START_OVER, RunError, RunLockedError, RunMismatchError
from dpft.runs.atomic import (
    Closing,
    disk_report,
    fsync,
    owners_folder,
    parse_json,
    temporary_of,
    write_atomic,
)
from dpft.runs.folders import DONE, GENERATIONS, generations_file, is_finished, marked
from dpft.runs.identity import canonical, config_hash, differences
from dpft.runs.ledger import LedgerContents, key_from_seed, read_ledger, steps_evident, stored_key

LOCK_NAME = ".lock"
PRIVATE_README = """# Not covered by the privacy guarantee

Everything in this folder comes from the training records **without noise**, or is the secret that
the noise was drawn from. Do not publish, send or commit any of it.

- `noise_key`: with it the noise can be recomputed and subtracted from the gradients.
- `metrics.jsonl`: losses, gradient norms and batch sizes of the private records.
- `evaluations.jsonl`: losses of held-out records, where `evaluate.every` asked for them.
- `norms.jsonl`: gradient norms of single records, where `record_norms` asked for them.
- `audit/`: scores of an audit's canaries; with the releases they give noiseless sums.

Keep the folder while the run may have to be continued: without the key it cannot be. Delete it
when the run is done.
"""


class DirectoryLock(Closing):
    """An exclusive ``flock`` on ``<folder>/.lock``; the folder is made if it does not exist.

    Nothing has to be cleaned up after a kill: the lock belongs to the open file, not to the file's
    existence. Child processes made by ``fork`` share it until they exit.

    Raises:
        RunLockedError: another process, or another `DirectoryLock` of this one, holds it.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_NAME
        self._descriptor: int | None = None
        while self._descriptor is None:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # If the folder was moved aside between open and flock, this lock is the old run's.
                if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                    self._descriptor = descriptor
            except BlockingIOError:
                holder = os.pread(descriptor, 256, 0).decode(errors="replace").strip()
                raise RunLockedError(
                    f"{folder} is in use by process {holder or 'unknown'}; expected to be its only "
                    "user: two processes must not train one run. Wait for that process or stop it, "
                    "then run the same command again; it continues where it stopped"
                ) from None
            except FileNotFoundError:
                pass
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def close(self) -> None:
        """Release the lock; harmless if it was already released."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class RunDirectory(Closing):
    """One run's folder, locked by this process until `close`; made by `open`.

    No file in it is ever half written, so a process may be killed at any moment and the same
    command continues. What must not be published is under ``private/``.
    """

    def __init__(self, path: Path, config: dict[str, Any], text: str, lock: DirectoryLock) -> None:
        self.path = path
        self.config = config
        self.config_hash = config_hash(config)
        self.identity = path / "identity.json"  # the fields that define the run, and their hash
        self.config_file = path / "config.yaml"  # the resolved configuration
        self.ledger = path / "ledger.jsonl"  # what was spent, see `Ledger`
        self.checkpoints = path / "checkpoints"  # see `checkpoint`
        self.record = path / "record.json"  # see `write_record`
        self.model = path / "model"  # the trained model and its card
        self.adapter = path / "adapter"  # what LoRA learned, by itself
        self.done_marker = path / DONE  # see `is_done`
        self.private = path / "private"  # what no guarantee covers
        self.noise_key_file = self.private / "noise_key"  # the secret; see `noise_key`
        self.metrics = self.private / "metrics.jsonl"  # see `MetricsLog`
        self.moved: Path | None = None  # where `clear` put the run that was here
        self._text, self._lock = text, lock
        self._new = not self._started

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        config_text: str,
        *,
        force: bool = False,
    ) -> RunDirectory:
        """Create the run, or continue it if the folder already holds it.

        ``config`` are the fields that define the run (`config_hash`), ``config_text`` is kept as
        ``config.yaml``, and with ``force`` a run that is there is moved aside first.

        Raises:
            RunLockedError: another process is using the run.
            RunMismatchError: the folder holds a run of another configuration.
            RunError: the folder holds a run that lost its identity, or cannot be written.
        """
        folder = Path(path).absolute()  # the working folder may change later
        plain = canonical(config)
        try:
            lock = DirectoryLock(folder)
        except OSError as error:
            raise RunError(
                f"cannot use {folder} as a run folder: {error}; expected a folder that can be "
                "written to: type runs_dir=FOLDER"
            ) from error
        run = cls(folder, plain, config_text, lock)
        try:
            if force and run._started:
                run.clear()
            else:
                run._verify_identity()
                run._lay_out()
                run._remove_leftovers()
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def check(cls, path: Path, config: Mapping[str, Any]) -> None:
        """Raise what `open` would raise, as far as is known without writing anything."""
        nearest = next(one for one in path.absolute().parents if one.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            advice = "expected a folder that can be written to: type runs_dir=FOLDER"
            raise RunError(f"cannot use {path} as a run folder below {nearest}; {advice}")
        if path.is_dir() and any(path.iterdir()):
            with DirectoryLock(path) as lock:
                cls(path, canonical(config), "", lock)._verify_identity()

    def generations(self, split: str) -> Path:
        """Return the file for the generations of a split; its folder exists."""
        (self.path / GENERATIONS).mkdir(exist_ok=True)
        return generations_file(self.path, f"{GENERATIONS}{split}.jsonl")

    @property
    def is_done(self) -> bool:
        """True if exactly this configuration ran to its end."""
        return is_finished(self.path, self.config_hash)

    def mark_done(self) -> None:
        """Write the done-marker, last of all files: it lists what the run now consists of."""
        self._write(self.done_marker, marked(self.path, self.config_hash))

    def clear(self) -> Path:
        """Move the run aside to ``<name>.old-N``, which is returned, and start an empty one.

        Nothing is deleted: the old ledger stays evidence of what was spent on the same data.
        """
        pattern = re.compile(re.escape(self.path.name) + r"\.old-(\d+)")
        others = (pattern.fullmatch(path.name) for path in self.path.parent.iterdir())
        number = max((int(match[1]) for match in others if match), default=0) + 1
        aside = self.path.with_name(f"{self.path.name}.old-{number}")
        try:
            self.path.rename(aside)
        except OSError as error:
            raise RunError(
                f"could not move {self.path} to {aside}: {error}; expected a folder that can be "
                "renamed: move it by hand or give another one"
            ) from error
        fsync(self.path.parent)
        old, self._lock = self._lock, DirectoryLock(self.path)
        old.close()
        self._lay_out()
        self.moved = aside
        return aside

    def noise_key(
        self, explicit_seed: int | None = None, held: LedgerContents | None = None
    ) -> bytes:
        """Return the 32 bytes from which the key of sampling and noise follows (`run_key`).

        With an explicit seed it follows from that, and hides nothing; else it is the run's own
        secret under ``private/``, made on first use. ``held`` is the ledger, if it was read.

        Raises:
            NoiseKeyLostError: steps were spent with a secret that is gone.
        """
        if explicit_seed is not None:
            return key_from_seed(explicit_seed)
        if held is None and self.ledger.exists():
            held = read_ledger(self.ledger)
        # Where the ledger is gone, what it counted was spent all the same.
        spent = max(held.steps_spent if held else 0, steps_evident(self.path)[0])
        try:
            return stored_key(self.noise_key_file, steps_spent=spent)
        except OSError as error:
            raise RunError(self._refused(self.noise_key_file, error)) from error

    def discard_unused(self) -> None:
        """Remove the folder if this process made it and the run stopped before its first step."""
        kept = (self.ledger, self.record, self.metrics, self.done_marker, self.model)
        if not self._new or any(path.exists() for path in kept) or any(self.checkpoints.iterdir()):
            return
        self.identity.unlink(missing_ok=True)
        self.config_file.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        shutil.rmtree(self.private, ignore_errors=True)
        # Last: from then on the same command may start here, and draw its key.
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files are in it
            self.path.rmdir()

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    @property
    def _own(self) -> tuple[Path, ...]:
        """The files and folders of a run."""
        settings = self.identity, self.config_file
        results = self.record, self.model, self.done_marker
        return *settings, self.ledger, self.checkpoints, self.private, *results

    @property
    def _started(self) -> bool:
        return any(path.exists() for path in self._own)

    def _verify_identity(self) -> None:
        try:
            stored = parse_json(self.identity.read_bytes())
            config, digest = dict(stored["config"]), str(stored["config_hash"])
            if digest != config_hash(config):
                raise ValueError("the hash is not that of the settings")
        except FileNotFoundError:
            if self._started:
                raise RunError(
                    f"{self.path} holds files of a run but no {self.identity.name}; expected an "
                    f"empty folder or a whole run: give another folder, or {START_OVER}"
                ) from None
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{self.identity} is damaged ({error!r}); expected the run's settings and their "
                f"hash: restore the file, or {START_OVER}"
            ) from error
        if digest != self.config_hash:
            listed = "\n  ".join(differences(config, self.config))
            raise RunMismatchError(
                f"{self.path} holds another run: {digest}, expected {self.config_hash}. They "
                f"differ in (old -> new):\n  {listed}\nRepeat the old settings to continue that "
                f"run, give another folder, or {START_OVER}"
            )

    def _lay_out(self) -> None:
        """Write what every run has; the identity first, since it says which run the rest is of."""
        if not self.identity.exists():
            # What is made durable below is lost if the folder itself does not survive a power cut.
            for folder in self.path.parents:
                with contextlib.suppress(OSError):  # not permitted, or a file system that cannot
                    fsync(folder)
        identity = {"config": self.config, "config_hash": self.config_hash}
        self._write(self.identity, json.dumps(identity, indent=2, sort_keys=True) + "\n")
        if not self.config_file.exists():
            self._write(self.config_file, self._text)
        try:
            self.checkpoints.mkdir(exist_ok=True)
            owners_folder(self.private)
        except OSError as error:
            raise RunError(self._refused(self.path, error)) from error
        self._write(self.private / "README.md", PRIVATE_README, mode=0o600)

    def _remove_leftovers(self) -> None:
        """Remove what a killed process was writing, and no file of another program."""
        found = [temporary_of(path) for path in self._own]
        inside = [path for path in self.private.iterdir() if path.is_dir()]
        for folder in (self.private, *inside, self.model, self.path / GENERATIONS):
            found += folder.glob(".*.tmp")
        for folder in (self.model, self.adapter):
            found += folder.rglob(".tmp??????")  # of the library that writes tensors
        for path in found:
            if path.name != ".report.html.tmp":  # made without the lock
                path.unlink(missing_ok=True)

    def keep_config(self) -> None:
        """Store this command's configuration in place of an earlier one's.

        Of settings that do not change the run's identity, such as the device, the last ones count,
        once the run is known to continue with them.
        """
        self._write(self.config_file, self._text)

    def _write(self, path: Path, text: str, mode: int = 0o644) -> None:
        try:
            if not path.exists() or path.read_bytes() != text.encode():
                write_atomic(path, text, mode)
        except OSError as error:
            raise RunError(self._refused(path, error)) from error

    def _refused(self, path: Path, error: OSError) -> str:
        return (
            f"could not write {path}: {disk_report(self.path, error)}. Free some space or give a "
            f"folder that can be written to, and run the same command again"
        )
