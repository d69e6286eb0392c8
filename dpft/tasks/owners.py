"""The user of each record, as numbers: ten million names as Python strings take a gigabyte."""

from __future__ import annotations

import unicodedata
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
        """Return owners by name, one for each record."""
        if isinstance(names, Owners):
            return names
        chunks = [pa.array(block, pa.large_string()) for block in blocks(names, _BLOCK)]
        column = pa.chunked_array(chunks, pa.large_string()).combine_chunks()
        encoded = column.dictionary_encode()
        distinct, codes = encoded.dictionary, encoded.indices.to_numpy()
        # In the order of UTF-8 bytes, which is that of code points: Python's order of strings.
        order = pc.sort_indices(distinct).to_numpy()
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        return cls(distinct.take(pa.array(order)), place[codes])

    def part(self, rows: IntArray | slice) -> Owners:
        """Return the owners of some records, without the names of the others."""
        codes = self.codes[rows]
        present = np.zeros(len(self.names), bool)
        present[codes] = True
        place = np.cumsum(present, dtype=np.int32) - 1
        return Owners(self.names.filter(pa.array(present)), place[codes])

    def _part(self, chosen: slice) -> Owners:
        return self.part(chosen)

    def groups(self) -> tuple[IntArray, IntArray]:
        """Return the records in order of owner, and where the records of each owner begin.

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


def one_spelling(name: str) -> str:
    """Return a user's name in one Unicode form, without invisible characters and extra spaces.

    Guarantee: names that people read as one are one unit. As two units, each would be protected
    separately: less than was promised.
    """
    if name.isascii() and name.isprintable():
        return " ".join(name.split())
    normal = unicodedata.normalize("NFKC", name)
    shown = (c for c in normal if c.isspace() or unicodedata.category(c)[0] != "C")
    return " ".join("".join(shown).split())
