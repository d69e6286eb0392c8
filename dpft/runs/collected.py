"""Finished runs in one compressed table, as ``results/`` has them: a line of JSON for each."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dpft.runs.atomic import parse_json, write_atomic
from dpft.runs.errors import RecordError

TABLE = "records.jsonl.gz"


@dataclass(frozen=True)
class CollectedRun:
    """A run whose record was copied into a table.

    Attributes:
        path: its name below the folder of the table, GROUP/NAME.
        record: its ``record.json``, not checked (`dpft.runs.record.check_record`).
        ledger: the text of its ledger's summary (`dpft.runs.summary`); empty without privacy.
    """

    path: str
    record: Mapping[str, Any]
    ledger: str = ""


def read_table(folder: Path) -> list[CollectedRun]:
    """Return the runs of the folder's table in the order of their paths; none without a table.

    Raises:
        RecordError: the table is damaged.
    """
    file = folder / TABLE
    try:
        lines = gzip.decompress(file.read_bytes()).splitlines()
        return [CollectedRun(**parse_json(line)) for line in lines]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, EOFError, TypeError, ValueError, zlib.error) as error:
        raise RecordError(
            f"{file} cannot be read ({error}); expected a line of JSON for each run, compressed by "
            "gzip: restore it from a copy"
        ) from error


def write_table(folder: Path, runs: Iterable[CollectedRun]) -> None:
    """Write the folder's table: equal runs give equal bytes, in whatever order they come."""
    ordered = sorted(runs, key=lambda run: PurePosixPath(run.path))
    lines = [json.dumps(asdict(run), sort_keys=True, ensure_ascii=False) + "\n" for run in ordered]
    write_atomic(folder / TABLE, gzip.compress("".join(lines).encode(), mtime=0))
