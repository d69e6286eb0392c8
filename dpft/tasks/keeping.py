"""Arrow tables that are kept for the next run, so that large data are read and encoded once.

What is kept is made from training records and as private as they are: it is below a folder called
``private``, folders have mode 0700 and files mode 0600, and file names are keyed digests.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

import dpft
from dpft.config.schema import Run
from dpft.runs.atomic import fsync_directory, owners_folder, write_atomic
from dpft.runs.errors import disk_report
from dpft.runs.folders import PRIVATE, run_path
from dpft.runs.noise_key import stored_key

_PACKAGES = ("tokenizers", "transformers", "pyarrow")
_README = """# Not covered by the privacy guarantee

Training records, kept so that the next run on the same data starts sooner. They are as private as
the data itself: do not publish, send or commit any of it.

Delete the folder whenever no run uses it. What is missing is made again.
"""


@dataclass(frozen=True)
class Keeping:
    """A folder of tables.

    Attributes:
        folder: below one that is called ``private``; created when first used.
        warn: called with the reason why nothing can be kept.
        say: called before waiting for another process.
    """

    folder: Path
    warn: Callable[[str], None]
    say: Callable[[str], None]

    def table(
        self, what: str, identity: str, batches: Callable[[], Iterable[pa.RecordBatch]]
    ) -> pa.Table | None:
        """Return a table, mapped into memory; None, and a warning, if the disk is full.

        One process writes at a time, so that the runs of a sweep that need the same table wait for
        the first.

        Args:
            what: the table is, for messages.
            identity: everything that the table depends on; not written anywhere.
            batches: makes the table; one batch at least.
        """
        try:
            with self._locked(what):
                key = stored_key(self.folder / "key", steps_spent=0)
                name = hmac.new(key, identity.encode(), hashlib.sha256).hexdigest()[:32]
                path = self.folder / f"{name}.arrow"
                try:
                    return _opened(path)
                except (FileNotFoundError, pa.ArrowInvalid):
                    _write(path, batches())
                return _opened(path)
        except OSError as error:
            self.warn(
                f"{what} cannot be kept in {self.folder}: "
                f"{disk_report(self.folder.parent, error)}; this run goes on in memory. Free some "
                "space, or type cache=FOLDER or cache=none"
            )
            return None

    @contextmanager
    def _locked(self, what: str) -> Iterator[None]:
        for folder in (self.folder.parent, self.folder):
            owners_folder(folder)
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say(f"waiting for another run, which prepares {what} in {self.folder}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not (readme := self.folder / "README.md").exists():
                write_atomic(readme, _README, mode=0o600)
            yield
        finally:
            os.close(lock)


def _write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a table under a temporary name, and rename it once it is on the disk."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            iterator = iter(batches)
            first = next(iterator)
            with pa.ipc.new_stream(file, first.schema) as writer:
                writer.write_batch(first)
                for batch in iterator:
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _opened(path: Path) -> pa.Table:
    # The mapping outlives the file, which may be deleted meanwhile.
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


def keeping_of(run: Run, warn: Callable[[str], None], say: Callable[[str], None]) -> Keeping | None:
    """Return where a run keeps tables, according to ``cache``: by default next to the run."""
    if run.cache == "none":
        return None
    next_to = run_path(run).absolute().parent
    folder = next_to if run.cache == "auto" else Path(run.cache).absolute()
    return Keeping(folder / PRIVATE / "cache", warn, say)


def code() -> str:
    """Return a digest of the code that makes tables, and the versions of its libraries."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted([*here.rglob("*.py"), *here.parent.glob("config/*.py")]):
        digest.update(file.read_bytes())
    return " ".join([dpft.__version__, digest.hexdigest(), *map(version, _PACKAGES)])
