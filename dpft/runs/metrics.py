"""Training metrics of every step: computed without noise, hence kept under ``private/``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.runs.atomic import write_atomic
from dpft.runs.closing import Closing
from dpft.runs.errors import RunError, disk_report
from dpft.runs.wellformed import parse_json


class MetricsLog(Closing):
    """JSON lines, one per step, each step once however often the run was killed.

    Args:
        path: the file, ``private/metrics.jsonl`` of a run.
        resume_step: steps that the weights in hand have behind them. Lines of that step and later
            ones are dropped, for those steps will be replayed; so is a line torn by a kill.
    """

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        self._path = path
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if _belongs(line, resume_step)]
            if kept != lines:
                write_atomic(path, b"".join(kept), mode=0o600)
        else:
            # Its entry too, or `sync` would make lines durable of a file that is not.
            write_atomic(path, b"", mode=0o600)
        path.chmod(0o600)  # a copied folder may have lost it
        self._file = path.open("ab", buffering=0)

    def append(self, step: int, **values: Any) -> None:
        """Write one step's metrics; they survive a kill at once and a power cut after `sync`.

        Numbers that JSON lacks become the strings ``"nan"``, ``"inf"`` and ``"-inf"``.

        Raises:
            RunError: the disk refused.
        """
        line = json.dumps({"step": step} | _spell(values), allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise RunError(
                f"could not write the metrics of step {step} to {self._path}: "
                f"{disk_report(self._path.parent, error)}. Nothing is lost: free some space and "
                f"run the same command again"
            ) from error

    def sync(self) -> None:
        """Make all lines durable; call it before the checkpoint that follows them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _belongs(line: bytes, resume_step: int) -> bool:
    try:
        return line.endswith(b"\n") and int(parse_json(line)["step"]) < resume_step
    except (ValueError, KeyError, TypeError):
        return False


def _spell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _spell(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell(item) for item in value]
    return value
