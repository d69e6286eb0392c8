"""Limits on what a published archive may unpack to: a damaged one could fill the memory."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from dpft.config.errors import DataError


class Gunzipped(gzip.GzipFile):
    """A gzip file that raises DataError when it is read beyond ``most`` bytes."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        super().__init__(path, "rb")

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(self._most + 1 if size is None or size < 0 else size)
        self._check(super().seek(0, io.SEEK_CUR))
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:  # before what lies between is unpacked
            self._check(offset)
        return super().seek(offset, whence)

    def _check(self, place: int) -> None:
        if place > self._most:
            raise too_large(self._path, self._most)


def too_large(path: Path | str, most: int) -> DataError:
    """Return the error for a file that unpacks to more than ``most`` bytes."""
    return DataError(
        f"{path} unpacks to more than {most:,} bytes; expected less, as of the data set that was "
        "published: copy or download it again"
    )
