"""What was read of a large table is kept for the next run, which need not parse it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dpft.runs.array_store import Arrays, ArrayWriter
from dpft.tasks.keeping import Keeping, code
from dpft.tasks.owners import Owners
from dpft.tasks.reading import Reading, RowRules, read_splits
from dpft.tasks.table_files import Rows, TableFile

LARGE = 16 << 20
"""Bytes of a file from which on this is worth while."""
_COUNTS = ("characters", "breaks", "labels", "copies", "near_copies")
_PLAIN = ("fingerprint", "swallowed", "swallowed_first")


def read_or_kept(
    file: TableFile,
    rules: RowRules,
    advance: Callable[[int], None],
    keeping: Keeping,
    identity: Any,
) -> Mapping[str, Reading]:
    """What `read_splits` finds, kept where the file is large, under the ``identity`` of its rules.

    Raises:
        DataError: naming file and line.
    """
    if not file.by_row or file.size() < LARGE:
        return read_splits(file, rules, advance)
    key = json.dumps(["readings", identity, str(file.path), file.digest().hex(), code()])
    arrays = keeping.get(
        "what was read", key, lambda writer: _write(writer, read_splits(file, rules, advance))
    )
    if arrays is None:
        return read_splits(file, rules, advance)
    return {split: _read(arrays, split, facts, file) for split, facts in arrays.facts.items()}


def _write(writer: ArrayWriter, readings: Mapping[str, Reading]) -> Mapping[str, Any]:
    facts = {}
    for split, reading in readings.items():
        writer.append(f"{split}.positions", reading.rows.positions)
        writer.append(f"{split}.numbers", reading.rows.numbers)
        writer.append(f"{split}.contents", reading.contents)
        facts[split] = {
            **{name: getattr(reading, name) for name in _PLAIN},
            **{name: list(getattr(reading, name).items()) for name in _COUNTS},
            "owned": reading.owners is not None,
        }
        if reading.owners is not None:
            names = pa.concat_arrays([reading.owners.names])
            _, offsets, data = names.buffers()
            ends = np.frombuffer(offsets, np.int64)[names.offset :][: len(names) + 1]
            text = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
            writer.append(f"{split}.names", text)
            writer.append(f"{split}.name_ends", ends - ends[0])
            writer.append(f"{split}.owners", reading.owners.codes)
    return facts


def _read(arrays: Arrays, split: str, facts: Mapping[str, Any], file: TableFile) -> Reading:
    owners = None
    if facts["owned"]:
        ends = arrays[f"{split}.name_ends"]
        names = pa.LargeStringArray.from_buffers(
            len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(arrays[f"{split}.names"])
        )
        owners = Owners(names, arrays[f"{split}.owners"])
    found: dict[str, Any] = {name: facts[name] for name in _PLAIN}
    found |= {name: Counter(dict(facts[name])) for name in _COUNTS}
    return Reading(
        rows=Rows(file, arrays[f"{split}.positions"], arrays[f"{split}.numbers"]),
        owners=owners,
        contents=arrays[f"{split}.contents"],
        **found,
    )
