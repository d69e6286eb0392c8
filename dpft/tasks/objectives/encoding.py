"""Encoding all training records, in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from dpft.tasks.objectives.packed import Packed, pack, schema_of
from dpft.tasks.views import blocks

PIECE = 1024
"""Records that are encoded at a time."""


def encoded(
    objective: Any, records: Sequence[Any], advance: Callable[[int], None]
) -> Sequence[Any]:
    """Encode every record, one at least; call ``advance`` with the number that are done.

    Returns:
        Examples, which are made from Arrow columns on access; a list if examples are other than
        tokens and numbers.
    """
    kind = type(encode_all(objective, records[:1])[0])
    schema = schema_of(kind, token_type(objective))
    if schema is None:
        examples: list[Any] = []
        for piece in blocks(records, PIECE):
            examples += encode_all(objective, piece)
            advance(len(piece))
        return examples

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in blocks(records, PIECE):
            yield pack(encode_all(objective, piece), schema)
            advance(len(piece))

    return Packed(kind, pa.Table.from_batches(batches()))


def encode_all(objective: Any, records: Sequence[Any]) -> list[Any]:
    """Encode records: several at once, unless a class says only how one is encoded."""
    methods = ("encode", "encode_all")
    for cls in type(objective).__mro__:
        if any(name in vars(cls) for name in methods):
            if "encode_all" in vars(cls):
                return list(objective.encode_all(records))
            break
    return [objective.encode(record) for record in records]


def token_type(objective: Any) -> pa.DataType:
    """Return the smallest type of numbers that holds the tokens."""
    tokenizer = getattr(objective, "tokenizer", None)
    if tokenizer is None or not hasattr(tokenizer, "get_vocab"):
        return pa.int32()
    return pa.uint16() if max(tokenizer.get_vocab().values()) < 2**16 - 1 else pa.int32()
