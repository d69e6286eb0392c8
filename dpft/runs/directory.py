"""The folder of one run: what lies where, who may use it, and whether it is the same run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.runs.atomic import fsync_directory, owners_folder, temporary_of, write_atomic
from dpft.runs.closing import Closing
from dpft.runs.errors import START_OVER, RunError, RunMismatchError, disk_report
from dpft.runs.evidence import steps_evident
from dpft.runs.finished import ADAPTER, DONE, MODEL, RECORD, Damage, damages, is_finished, marked
from dpft.runs.generations import FOLDER, generations_file
from dpft.runs.identity import canonical, config_hash, differences
from dpft.runs.ledger import read_ledger
from dpft.runs.lock import LOCK_NAME, DirectoryLock
from dpft.runs.noise_key import key_from_seed, stored_key
from dpft.runs.wellformed import parse_json

PRIVATE_README = """# Not covered by the privacy guarantee

Everything in this folder comes from the training records **without noise**, or is the secret that
the noise was drawn from. Do not publish, send or commit any of it.

- `noise_key`: whoever has it can recompute the noise and subtract it from the gradients.
- `metrics.jsonl`: losses, gradient norms and batch sizes of the private records.
- `evaluations.jsonl`: losses of held-out records, where `evaluate.every` asked for them.
- `norms.jsonl`: gradient norms of single records, where `record_norms` asked for them.
- `audit/`: scores of an audit's canaries; with the releases they give noiseless sums.

Keep the folder while the run may have to be continued: without the key it cannot be. Delete it
when the run is done.
"""


class RunDirectory(Closing):
    """One run's folder, locked by this process until `close`; made by `open`.

    Nothing in it is ever half written, so a process may be killed at any moment and the same
    command continues. What may be published lies at the top; what may not lies under ``private/``.
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
        self._text = text
        self._lock = lock
        self._new = not self._started
        self.moved: Path | None = None  # where `clear` put the run that was here

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

        Args:
            path: the folder; files that dpft did not make are left alone.
            config: the fields that define the run, see `config_hash`.
            config_text: the resolved configuration, kept as ``config.yaml``.
            force: move whatever run is there aside first and begin anew.

        Raises:
            RunLockedError: another process is using the run.
            RunMismatchError: the folder holds a run of another configuration.
            RunError: the folder holds a run that lost its identity, or cannot be written.
        """
        folder = Path(path).absolute()  # the working folder may change later
        plain = canonical(config)
        _refuse_links(folder)
        try:
            lock = DirectoryLock.acquire(folder)
        except OSError as error:
            raise RunError(
                f"cannot use {folder} as a run folder: {error}; expected a folder that can be "
                f"written to: give another one"
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

    # --- what lies where ----------------------------------------------------------------------

    def generations(self, split: str) -> Path:
        """Where the generations of a split go; its folder exists."""
        folder = self.path / FOLDER
        folder.mkdir(exist_ok=True)
        return generations_file(self.path, f"{FOLDER}/{split}.jsonl")

    # --- the life of a run --------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether this very configuration ran to its end."""
        return is_finished(self.path, self.config_hash)

    def reopen(self) -> None:
        """Take the done-marker away before anything is done again; a kill may come at any time.

        With it goes what it proves to be damaged and is made again: nothing could tell later.
        """
        for damage in damages(self.path, (RECORD, MODEL, ADAPTER)):
            (self.path / damage.name).unlink(missing_ok=True)
        self.done_marker.unlink(missing_ok=True)
        fsync_directory(self.path)

    def mark_done(self) -> None:
        """Write the done-marker, last of all files: what the run now consists of."""
        self._write(self.done_marker, marked(self.path, self.config_hash).spelled())

    def damages(self) -> list[Damage]:
        """What of this run, if it is finished, is not what it was; every byte is looked at."""
        return damages(self.path) if self.is_done else []

    def clear(self) -> Path:
        """Move the run aside to ``<name>.old-N`` and begin an empty one in its place.

        Nothing is deleted: the old ledger stays evidence of what was spent on the same data.

        Returns:
            Where the old run lies now.
        """
        pattern = re.compile(re.escape(self.path.name) + r"\.old-(\d+)")
        siblings = (pattern.fullmatch(path.name) for path in self.path.parent.iterdir())
        number = max((int(match[1]) for match in siblings if match), default=0) + 1
        aside = self.path.with_name(f"{self.path.name}.old-{number}")
        try:
            self.path.rename(aside)
        except OSError as error:
            raise RunError(
                f"could not move {self.path} to {aside}: {error}; expected a folder that can be "
                f"renamed: move it by hand or give another one"
            ) from error
        fsync_directory(self.path.parent)
        old, self._lock = self._lock, DirectoryLock.acquire(self.path)
        old.release()
        self._lay_out()
        self.moved = aside
        return aside

    def noise_key(self, explicit_seed: int | None = None) -> bytes:
        """The 32 bytes that the key of this run's sampling and noise follows from (`run_key`).

        Args:
            explicit_seed: for repeatable research; the key then follows from it and hides nothing.
                None: the run's own secret under ``private/``, made on first use.

        Raises:
            NoiseKeyLostError: steps were spent with a secret that is gone.
        """
        if explicit_seed is not None:
            return key_from_seed(explicit_seed)
        spent = read_ledger(self.ledger).steps_spent if self.ledger.exists() else 0
        # Where the ledger is gone, what it counted was spent all the same.
        spent = max(spent, steps_evident(self.path)[0])
        try:
            return stored_key(self.noise_key_file, steps_spent=spent)
        except OSError as error:
            raise RunError(self._refused(self.noise_key_file, error)) from error

    def discard_unused(self) -> None:
        """Take the folder away again if this process began it and nothing came of it.

        A run that was refused before its first step has no privacy to account for; what its
        folder would tell later is an unfinished run.
        """
        kept = (self.ledger, self.record, self.metrics, self.done_marker, self.model)
        if not self._new or any(path.exists() for path in kept) or any(self.checkpoints.iterdir()):
            return
        for file in (self.identity, self.config_file):
            file.unlink(missing_ok=True)
        for folder in (self.checkpoints, self.private):
            shutil.rmtree(folder, ignore_errors=True)
        # Last: from then on the same command may begin here, and draw its key.
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody's own files are in it
            self.path.rmdir()

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    # --- inside -------------------------------------------------------------------------------

    @property
    def _started(self) -> bool:
        own = (
            self.identity,
            self.config_file,
            self.ledger,
            self.checkpoints,
            self.record,
            self.model,
            self.private,
            self.done_marker,
        )
        return any(path.exists() for path in own)

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
        """Write what every run has; the identity first, for it says whose the rest is."""
        if not self.identity.exists():
            # What is made durable below is lost if the folder itself does not survive a power cut.
            for folder in self.path.parents:
                with contextlib.suppress(OSError):  # somebody else's, or a file system that cannot
                    fsync_directory(folder)
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
        """Take away what a killed process was writing; others' files are left alone."""
        own = [self.identity, self.config_file, self.ledger, self.record, self.done_marker]
        found = [temporary_of(path) for path in own]
        inside = [path for path in self.private.iterdir() if path.is_dir()]
        for folder in (self.private, *inside, self.model, self.path / "generations"):
            found += folder.glob(temporary_of(folder / "*").name)
        for folder in (self.model, self.adapter):
            found += folder.rglob(".tmp??????")  # of the library that writes tensors
        for path in found:
            if path != temporary_of(self.private / "report.html"):  # made without the lock
                path.unlink(missing_ok=True)

    def keep_config(self) -> None:
        """Put this command's configuration in the place of an earlier one's.

        Of settings that make no other run, such as the device, what was typed last counts; but only
        once the run is found to go on with it.
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


def _refuse_links(folder: Path) -> None:
    """Refuse a run, perhaps from elsewhere, whose logs are links: what they name would be changed.

    Other files are replaced as a whole, and so are links in their place.
    """
    for name in (LOCK_NAME, "ledger.jsonl", "private/metrics.jsonl", "private/norms.jsonl"):
        if (folder / name).is_symlink():
            raise RunError(
                f"{folder / name} is a link; expected a file of the run itself: put the file there"
            )
