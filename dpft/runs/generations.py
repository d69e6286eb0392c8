"""Where a run's generations lie: in its own folder, whatever its record says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.runs.errors import RecordError

FOLDER = "generations"


def generations_files(run: Path, record: Mapping[str, Any]) -> dict[str, Path]:
    """The files that a record names, by split or by what was decoded.

    Args:
        run: the run directory.
        record: of that run.

    Raises:
        RecordError: a file is none of the run's. A record may come from elsewhere, and what it
            names would be read, scored and shown.
    """
    named = record.get("generations") or {}
    if not isinstance(named, Mapping):
        raise RecordError(
            f"{run / 'record.json'}: generations is {named!r}; expected files by split"
        )
    return {str(split): generations_file(run, str(name)) for split, name in named.items()}


def generations_file(run: Path, name: str) -> Path:
    """The file of this name, as it stands in the record of ``run``; it need not exist.

    Raises:
        RecordError: it is not in the run's folder ``generations``, links followed.
    """
    file = run / name
    if file.resolve().parent != run.resolve() / FOLDER:
        raise RecordError(
            f"{run}: got {name!r} as generations, which lies elsewhere, perhaps by a link; "
            f"expected a file in the run's own folder {FOLDER}/, as dpft writes it: decode again "
            "with dpft decode"
        )
    return file
