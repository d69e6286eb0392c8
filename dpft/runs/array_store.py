"""Large arrays that are kept between runs: flat files below a ``private`` folder.

What is kept is made from training records, so that it is as private as they are: folders are of
mode 0700, files of mode 0600, and their names are keyed digests, which tell nothing. All of it can
be made again: the folder may be deleted whenever no run is going on.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpft.runs.atomic import fsync_directory, owners_folder, sha256_file, write_atomic
from dpft.runs.noise_key import stored_key

Array = npt.NDArray[Any]

VERSION = 1
_DESCRIPTION = "arrays.json"
_PARTIAL = ".partial"
_README = """# Not covered by the privacy guarantee

Training records as arrays, kept so that the next run on the same data starts sooner. They are as
private as the records themselves: do not publish, send or commit any of it.

Delete the folder whenever no run is going on. What is missing is made again.
"""


class Arrays:
    """Flat arrays by name, in memory or in files.

    Attributes:
        facts: what was said of them, as plain data.
    """

    def __init__(self, columns: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self._columns = columns
        self.facts = facts

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def __getitem__(self, column: str) -> Array:
        """The array ``(n,)``; of a file it is mapped into memory."""
        return np.asarray(self._columns[column])

    def reader(self, column: str) -> Callable[[int, int], Array]:
        """Gives a part ``[start, stop)`` of an array.

        Of a file it is read and not mapped: pages of a mapped file would count as memory that the
        process holds.
        """
        array = self._columns[column]
        if not isinstance(array, np.memmap):
            return lambda start, stop: array[start:stop]
        file = os.open(str(array.filename), os.O_RDONLY)
        kind, size = array.dtype, array.dtype.itemsize

        def read(start: int, stop: int) -> Array:
            return np.frombuffer(os.pread(file, (stop - start) * size, start * size), kind)

        weakref.finalize(read, os.close, file)
        return read


class ArrayWriter:
    """Collects arrays piece by piece.

    Args:
        folder: for the files, which is new; None: they stay in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._kinds: dict[str, np.dtype[Any]] = {}
        self._digests: dict[str, Any] = {}
        if folder is not None:
            folder.mkdir(mode=0o700)

    def append(self, column: str, values: Array) -> None:
        """Add values to the end of an array; all pieces of one have the same type.

        Raises:
            OSError: the disk is full.
        """
        if column not in self._files:
            self._kinds[column] = values.dtype
            self._digests[column] = hashlib.sha256()
            self._files[column] = self._new(column)
        if values.dtype != self._kinds[column]:
            raise ValueError(f"{column} is of {self._kinds[column]}, got {values.dtype}")
        data = np.ascontiguousarray(values).view(np.uint8).data
        self._files[column].write(data)
        if self._folder is not None:
            self._digests[column].update(data)

    def _new(self, column: str) -> BinaryIO:
        if self._folder is None:
            return BytesIO()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        return os.fdopen(os.open(self._folder / column, flags, 0o600), "wb")

    def in_memory(self, facts: Mapping[str, Any]) -> Arrays:
        """What was collected without a folder."""
        columns = {}
        for column, file in self._files.items():
            assert isinstance(file, BytesIO)
            columns[column] = np.frombuffer(file.getbuffer(), self._kinds[column])
        return Arrays(columns, facts)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Make the files durable, and say what they are."""
        assert self._folder is not None
        described = {}
        for column, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            file.close()
            described[column] = {
                "dtype": self._kinds[column].str,
                "bytes": (self._folder / column).stat().st_size,
                "sha256": self._digests[column].hexdigest(),
            }
        text = json.dumps({"version": VERSION, "arrays": described, "facts": dict(facts)})
        write_atomic(self._folder / _DESCRIPTION, text, mode=0o600)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            if not isinstance(file, BytesIO):
                file.close()


class ArrayStore:
    """Entries of arrays below a folder.

    Args:
        folder: below one that is called ``private``; created when first used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(
        self,
        identity: str,
        fill: Callable[[ArrayWriter], Mapping[str, Any]],
        waiting: Callable[[], None],
    ) -> Arrays:
        """The arrays of an identity, made by ``fill`` unless they are there and whole.

        One process makes arrays at a time: those of a sweep that need the same wait for the first.
        What a process was making when it was killed is believed by nobody, and removed by the next.

        Args:
            identity: all that the arrays follow from; not written anywhere.
            fill: writes the arrays, and returns facts about them.
            waiting: called before waiting for another process.

        Raises:
            OSError: the folder cannot be written to, or the disk is full; nothing is left behind.
        """
        with self._locked(waiting):
            name = hmac.new(self._key(), identity.encode(), hashlib.sha256).hexdigest()[:32]
            entry = self.folder / name
            if (found := _verified(entry)) is not None:
                return found
            shutil.rmtree(entry, ignore_errors=True)
            partial = entry.with_suffix(_PARTIAL)
            writer = ArrayWriter(partial)
            try:
                writer.finish(fill(writer))
                partial.rename(entry)
                fsync_directory(self.folder)
            except BaseException:
                writer.close()
                shutil.rmtree(partial, ignore_errors=True)
                raise
            return _opened(entry)

    @contextmanager
    def _locked(self, waiting: Callable[[], None]) -> Iterator[None]:
        """The folder, in which this process alone makes something."""
        for folder in (self.folder.parent, self.folder):
            owners_folder(folder)
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            for left in self.folder.glob(f"*{_PARTIAL}"):
                shutil.rmtree(left, ignore_errors=True)
            readme = self.folder / "README.md"
            if not readme.exists():
                write_atomic(readme, _README, mode=0o600)
            yield
        finally:
            os.close(descriptor)

    def _key(self) -> bytes:
        return stored_key(self.folder / "key", steps_spent=0)


def _described(entry: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((entry / _DESCRIPTION).read_text("utf-8"))
    if described["version"] != VERSION:
        raise ValueError(f"version {described['version']}")
    return described


def _verified(entry: Path) -> Arrays | None:
    """The arrays of an entry if all of its files are what was written."""
    try:
        for column, told in _described(entry)["arrays"].items():
            if sha256_file(entry / column) != told["sha256"]:
                return None
        return _opened(entry)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opened(entry: Path) -> Arrays:
    described = _described(entry)
    columns: dict[str, Array] = {}
    for column, told in described["arrays"].items():
        kind = np.dtype(told["dtype"])
        if told["bytes"]:  # an empty file cannot be mapped
            columns[column] = np.memmap(entry / column, kind, mode="r")
        else:
            columns[column] = np.zeros(0, kind)
    return Arrays(columns, described["facts"])
