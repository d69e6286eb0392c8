"""The JSON files that ``dpft bench`` wrote, found again for whoever reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dpft.config.errors import ConfigError

FOLDERS = ("runs/bench", "results/bench")

T = TypeVar("T")


def read_documents(
    read: Callable[[Path, Mapping[str, Any]], T], folders: Iterable[Path] | None = None
) -> tuple[list[T], list[str]]:
    """Every file of results below the folders, and a line for each that cannot be read.

    A file that is come upon twice counts once. JSON of other kinds is passed over.

    Args:
        read: what to make of a file, from its path and its content. A key that lacks or a value of
            a wrong kind makes the file a damaged one.
        folders: None: those of `FOLDERS` that exist.

    Raises:
        ConfigError: for a folder that is not there.
    """
    if folders is None:
        folders = [Path(name) for name in FOLDERS if Path(name).is_dir()]
    found: list[T] = []
    damaged: list[str] = []
    seen: set[str] = set()
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(
                f"--bench {folder} is no folder; expected one with files of dpft bench"
            )
        for path in sorted(folder.rglob("*.json")):
            # Not Path.resolve, which raises where links go in a circle.
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                if "summary" in content or "largest_batch" in content:
                    found.append(read(path, content))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                damaged.append(f"{path} cannot be read as a benchmark ({error!r})")
    return found, damaged
