"""Encoding all training records, in pieces."""

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpft.tasks.table_files import on_disk
from dpft.tasks.views import View, blocks

IntArray = npt.NDArray[np.integer[Any]]
PIECE = 1024
"""Records that are encoded at a time."""


def lengths(examples: Sequence[Any]) -> IntArray:
    """Return the ``length`` of every example, ``(n,)``."""
    return values(examples, "length")


def values(examples: Sequence[Any], field: str) -> IntArray:
    """Return a field of numbers of every example, ``(n,)``; zeros if there is no such field."""
    if isinstance(examples, Packed):
        return examples.numbers(field)
    return np.array([getattr(example, field, 0) for example in examples], np.int64)


def schema_of(kind: type) -> pa.Schema | None:
    """Return the columns of a class of examples: its fields and ``length``.

    None if the class is not a dataclass of numbers and sequences of tokens.
    """
    if not dataclasses.is_dataclass(kind):
        return None
    types: dict[Any, pa.DataType] = {int: pa.int32()}
    types |= dict.fromkeys((tuple[int, ...], tuple[int, ...] | None), pa.list_(pa.int32()))
    hints = typing.get_type_hints(kind)
    columns = {field.name: types.get(hints[field.name]) for field in dataclasses.fields(kind)}
    if None in columns.values():
        return None
    return pa.schema({"length": pa.int32(), **columns})


def pack(examples: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return examples of one class as Arrow columns."""
    rows = [{name: getattr(example, name) for name in schema.names} for example in examples]
    return pa.RecordBatch.from_pylist(rows, schema)


class Packed(View[Any]):
    """Examples that are made from an Arrow table on access."""

    def __init__(self, kind: type, table: pa.Table) -> None:
        self._kind = kind
        self._table = table
        fields = [field.name for field in dataclasses.fields(kind)]
        self._tokens = {n: table[n] for n in fields if not pa.types.is_int32(table[n].type)}
        self._numbers = {n: self.numbers(n) for n in fields if n not in self._tokens}

    def numbers(self, field: str) -> IntArray:
        """Return a column of numbers, ``(n,)``; zeros if there is none."""
        if field not in self._table.column_names:
            return np.zeros(len(self), np.int32)
        numbers: IntArray = self._table[field].to_numpy()
        return numbers

    def __len__(self) -> int:
        count: int = self._table.num_rows
        return count

    def _item(self, index: int) -> Any:
        found: dict[str, Any] = {n: int(numbers[index]) for n, numbers in self._numbers.items()}
        for name, column in self._tokens.items():
            tokens = column[index].values
            found[name] = None if tokens is None else tuple(tokens.to_numpy().tolist())
        return self._kind(**found)

    def _part(self, chosen: slice) -> list[Any]:
        return [self._item(index) for index in range(len(self))[chosen]]


def encoded(
    objective: Any, records: Sequence[Any], advance: Callable[[int], None]
) -> Sequence[Any]:
    """Encode every record, one at least; call ``advance`` with the number that are done.

    Returns:
        Examples, which are made on access from Arrow columns on disk; a list if examples are other
        than tokens and numbers.
    """
    kind = type(encode_all(objective, records[:1])[0])
    schema = schema_of(kind)

    def pieces() -> Iterator[list[Any]]:
        for piece in blocks(records, PIECE):
            yield encode_all(objective, piece)
            advance(len(piece))

    if schema is None:
        return [*chain.from_iterable(pieces())]
    return Packed(kind, on_disk(schema, (pack(piece, schema) for piece in pieces())))


def encode_all(objective: Any, records: Sequence[Any]) -> list[Any]:
    """Encode records: several at once, unless a class says only how one is encoded."""
    methods = ("encode", "encode_all")
    for cls in type(objective).__mro__:
        if any(name in vars(cls) for name in methods):
            if "encode_all" in vars(cls):
                return list(objective.encode_all(records))
            break
    return [objective.encode(record) for record in records]
