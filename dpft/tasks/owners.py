"""Whose each record is, as numbers: ten million names as Python strings take a gigabyte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpft.tasks.views import View, blocks

_BLOCK = 1 << 16

IntArray = npt.NDArray[np.integer[Any]]


class Owners(View[str]):
    """The owner of each record.

    Args:
        names: of all owners, each once, in order (Arrow, ``large_string``).
        codes: by record, the index of its owner's name: ``(n,)``.
    """

    def __init__(self, names: pa.Array, codes: IntArray) -> None:
        self.names = names
        self.codes = codes

    @classmethod
    def of(cls, names: Iterable[str]) -> Owners:
        """Owners by name, one for each record."""
        if isinstance(names, Owners):
            return names
        chunks = [pa.array(block, pa.large_string()) for block in blocks(names, _BLOCK)]
        return cls.encoded(pa.chunked_array(chunks, pa.large_string()))

    @classmethod
    def encoded(cls, names: pa.ChunkedArray) -> Owners:
        """The same of an Arrow column."""
        if not len(names):
            return cls(pa.array([], pa.large_string()), np.zeros(0, np.int32))
        encoded = names.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        distinct, codes = encoded.dictionary, encoded.indices.to_numpy()
        # Of bytes in UTF-8, which is that of code points: Python's order of strings.
        order = pc.sort_indices(distinct).to_numpy()
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        return cls(distinct.take(pa.array(order)), place[codes])

    def _part(self, chosen: slice) -> Owners:
        return self.part(chosen)

    def part(self, rows: IntArray | slice) -> Owners:
        """Those of some records; of the names, those that are left."""
        codes = self.codes[rows]
        there = np.zeros(len(self.names), bool)
        there[codes] = True
        place = np.cumsum(there, dtype=np.int32) - 1
        return Owners(self.names.filter(pa.array(there)), place[codes])

    def groups(self) -> tuple[IntArray, IntArray]:
        """Records in order of owner, and where each owner's begin.

        Returns:
            Indices of records ``(n,)``, ascending within an owner; and bounds ``(owners + 1,)``:
            those of owner ``u`` are ``bounds[u] : bounds[u + 1]``.
        """
        counts = np.bincount(self.codes, minlength=len(self.names))
        return np.argsort(self.codes, kind="stable"), np.concatenate(([0], np.cumsum(counts)))

    def __len__(self) -> int:
        return len(self.codes)

    def _item(self, index: int) -> str:
        return str(self.names[int(self.codes[index])].as_py())

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self.codes), _BLOCK):
            yield from self.names.take(pa.array(self.codes[start : start + _BLOCK])).to_pylist()
