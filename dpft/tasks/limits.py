"""How much a compressed file may unpack to: one of some megabytes could else fill the memory.

What a published archive holds is known, so its limit is that with some room. A table of one's own
may hold anything: its limit grows with the file.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpft.config.errors import DataError

# Of a table: so many bytes, or so many times the file's size, whichever is more.
_TABLE = 1 << 30
_RATIO = 64
# What a cell takes beside its contents once it is a Python object, and rows that are read at once.
_CELL = 64
_ROWS = 1024
# Of a MATLAB file.
_HEADER, _COMPRESSED, _PIECE = 128, 15, 1 << 20


class Gunzipped(gzip.GzipFile):
    """A gzip file that refuses to be read beyond ``most`` bytes.

    Raises:
        DataError: on reading or seeking, where it goes on.
    """

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
    """The refusal of a file that unpacks to more than ``most`` bytes."""
    return DataError(
        f"{path} unpacks to more than {most:,} bytes; expected less, as of the data set that was "
        "published: copy or download it again"
    )


def check_mat(path: Path, most: int) -> None:
    """Refuse a MATLAB file whose compressed parts together hold more than ``most`` bytes.

    Args:
        path: of version 5, where each variable may be compressed; others pass.
        most: bytes.

    Raises:
        DataError: if so.
        OSError: it cannot be read.
    """
    left = most
    with path.open("rb") as file:
        order = {b"IM": "<II", b"MI": ">II"}.get(file.read(_HEADER)[-2:])
        while order is not None and len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(order, tag)
            if kind != _COMPRESSED:
                file.seek(size, io.SEEK_CUR)
                continue
            unpack = zlib.decompressobj()
            while size > 0 and (data := file.read(min(size, _PIECE))):
                size -= len(data)
                while data:
                    left -= len(unpack.decompress(data, _PIECE))
                    if left < 0:
                        raise too_large(path, most)
                    data = unpack.unconsumed_tail


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a parquet file, as long as they are no more than such a file may hold.

    Raises:
        DataError: they are.
    """
    import pyarrow.parquet

    # Only the file: a folder called KEY=VALUE around it is no column.
    with pyarrow.parquet.ParquetFile(path) as file:
        for rows in limited_rows(path, file.iter_batches(batch_size=_ROWS)):
            yield from rows


def limited_rows(path: Path, batches: Iterable[Any]) -> Iterator[list[dict[str, Any]]]:
    """The rows of each batch of a parquet file, as long as they are no more than it may hold.

    Raises:
        DataError: they are.
    """
    most = max(_TABLE, _RATIO * path.stat().st_size)
    left = most
    for batch in batches:
        rows: list[dict[str, Any]] = batch.to_pylist()
        left -= _CELL * len(rows) * (batch.num_columns + 1)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            # A value that all rows share is stored once, and becomes a text of each.
            shared = "dictionary" in str(column.type)
            left -= len(repr([row[name] for row in rows])) if shared else column.nbytes
        if left < 0:
            raise too_large(path, most)
        yield rows
