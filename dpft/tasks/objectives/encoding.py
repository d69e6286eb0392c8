"""Encoding all training records: in pieces, by several processes, and once for several runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from dpft.runs.array_store import Array, ArrayWriter
from dpft.runs.environment import usable_cores
from dpft.tasks.keeping import Keeping, code, is_ours, settings
from dpft.tasks.objectives.packed import Packed, Packer, fields, pack
from dpft.tasks.views import blocks

PIECE = 1024
"""Records that are encoded at a time."""
LARGE = 100_000
"""From so many records on, what they are encoded to is kept between runs."""
# A process takes seconds to start, and hundreds of MiB.
_PER_PROCESS, _MOST_PROCESSES = 50_000, 16


def encoded(
    objective: Any,
    records: Sequence[Any],
    advance: Callable[[int], None],
    *,
    keeping: Keeping | None = None,
    identity: str = "",
    threads: int | None = None,
) -> Sequence[Any]:
    """Every record, encoded.

    Args:
        objective: a `dpft.tasks.objectives.base.Objective`.
        records: one at least.
        advance: called with the number of records that are done.
        keeping: where many are kept; None: nowhere.
        identity: of the records and the tokenizer.
        threads: most processes at a time; None: one for each core.

    Returns:
        Examples, which are made from flat arrays when they are asked for; a list where examples are
        other than tokens and numbers.
    """
    first = encode_all(objective, records[:1])[0]
    if fields(type(first)) is None:
        examples: list[Any] = []
        for piece in blocks(records, PIECE):
            examples += encode_all(objective, piece)
            advance(len(piece))
        return examples
    fill = partial(_fill, objective, records, advance, threads)
    arrays = None
    if keeping is not None and len(records) >= LARGE and is_ours(objective):
        key = {
            "examples": identity,
            "objective": [type(objective).__qualname__, settings(objective, ("tokenizer",))],
            "code": code(),
        }
        arrays = keeping.get("encoded records", json.dumps(key), fill)
    if arrays is None:
        writer = ArrayWriter()
        arrays = writer.in_memory(fill(writer))
    return Packed(type(first), arrays)


def encode_all(objective: Any, records: Sequence[Any]) -> list[Any]:
    """Records, encoded: several at once, unless a class says only how one is."""
    methods = ("encode", "encode_all")
    for cls in type(objective).__mro__:
        if any(name in vars(cls) for name in methods):
            if "encode_all" in vars(cls):
                return list(objective.encode_all(records))
            break
    return [objective.encode(record) for record in records]


def _fill(
    objective: Any,
    records: Sequence[Any],
    advance: Callable[[int], None],
    threads: int | None,
    writer: ArrayWriter,
) -> Mapping[str, Any]:
    """Write all records' examples."""
    packer = Packer(writer)
    kind = token_type(objective)
    with closing(_packed(objective, records, kind, threads)) as pieces:
        for packed in pieces:
            packer.add(packed)
            advance(len(packed["length"]))
    return {"records": len(records)}


def _packed(
    objective: Any, records: Sequence[Any], kind: str, threads: int | None
) -> Generator[Mapping[str, Array], None, None]:
    cores = threads or usable_cores() or 1
    processes = min(cores, _MOST_PROCESSES, len(records) // _PER_PROCESS)
    if processes > 1 and is_ours(objective):
        from dpft.tasks.objectives.workers import in_processes

        yield from in_processes(objective, records, kind, PIECE, processes)
        return
    for piece in blocks(records, PIECE):
        yield pack(encode_all(objective, piece), kind)


def token_type(objective: Any) -> str:
    """The smallest type of numbers that holds the tokens."""
    tokenizer = getattr(objective, "tokenizer", None)
    if tokenizer is None or not hasattr(tokenizer, "get_vocab"):
        return "int32"
    largest = max(tokenizer.get_vocab().values())
    return "uint16" if largest < np.iinfo(np.uint16).max else "int32"
