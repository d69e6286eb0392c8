"""Training metrics of every step: computed without noise, hence kept under ``private/``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.runs.closing import Closing
from dpft.runs.identity import opened, sealed
from dpft.runs.log import Entry, Log, damaged, read_log

REMEDY = "delete that line: it is of no effect on the run"


class MetricsLog(Closing):
    """One entry a step, each step once however often the run was killed.

    Args:
        path: the file, ``private/metrics.jsonl`` of a run.
        resume_step: steps that the weights in hand have behind them. Entries of that step and later
            ones are dropped, for those steps will be replayed.
        remedy: what to do about a damaged line, as a clause.
        checksums: whether each entry gets a SHA-256 of its own, for `read_checked`.

    Raises:
        LogError: see `Log`.
    """

    def __init__(
        self, path: Path, resume_step: int = 0, remedy: str = REMEDY, checksums: bool = False
    ) -> None:
        self._checksums = checksums
        self._log = Log(path, remedy, keep=lambda entry: entry.get("step") in range(resume_step))

    def append(self, step: int, **values: Any) -> None:
        """Write one step's metrics.

        Numbers that JSON lacks become the strings ``"nan"``, ``"inf"`` and ``"-inf"``.

        Raises:
            LogError: the disk is full.
        """
        entry = {"step": step} | _spell(values)
        self._log.append(sealed(entry) if self._checksums else entry)

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def read_checked(path: Path, remedy: str) -> list[Entry]:
    """The entries of a `MetricsLog` with checksums, which are left out; none if there is no file.

    Raises:
        LogError: as `read_log`; an entry is not what was written.
    """
    entries = []
    for number, entry in enumerate(read_log(path, remedy) if path.exists() else (), start=1):
        try:
            entries.append(opened(entry))
        except ValueError as error:
            raise damaged(path, number, str(error), remedy) from None
    return entries


def _spell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _spell(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell(item) for item in value]
    return value
