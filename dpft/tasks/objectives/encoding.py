"""Encoding all training records: in pieces, and once for several runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from dpft.tasks.keeping import Keeping, code
from dpft.tasks.objectives.packed import Packed, pack, schema_of
from dpft.tasks.views import blocks

PIECE = 1024
"""Records that are encoded at a time."""
LARGE = 100_000
"""From so many records on, what they are encoded to is kept between runs."""


def encoded(
    objective: Any,
    records: Sequence[Any],
    advance: Callable[[int], None],
    *,
    keeping: Keeping | None = None,
    identity: str = "",
) -> Sequence[Any]:
    """Encode every record.

    Args:
        objective: a `dpft.tasks.objectives.base.Objective`.
        records: one at least.
        advance: called with the number of records that are done.
        keeping: where many are kept; None: nowhere.
        identity: of the records and the tokenizer.

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

    table = None
    # The code of a class outside of this package is not part of `code`.
    ours = type(objective).__module__.startswith("dpft.")
    if keeping is not None and len(records) >= LARGE and ours:
        names = [f.name for f in dataclasses.fields(objective) if f.name != "tokenizer"]
        settings = {name: repr(getattr(objective, name)) for name in names}
        key = [identity, type(objective).__qualname__, settings, code()]
        table = keeping.table("encoded records", json.dumps(key), batches)
    if table is None:
        table = pa.Table.from_batches(batches())
    return Packed(kind, table)


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
