"""Where runs lie: the one search for run directories."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpft.runs.hidden import PRIVATE

# Each of these makes a folder a run's: the first of a finished one, the others from its start on.
_OF_A_RUN = ("record.json", "identity.json", "ledger.jsonl")
_SET_ASIDE = re.compile(r"\.old-\d+$")


def is_run(folder: Path) -> bool:
    """Whether it is a run's directory, finished or not."""
    return any((folder / name).is_file() for name in _OF_A_RUN)


def runs_below(folder: Path) -> list[Path]:
    """The run directories at and below a folder, sorted.

    Left out are folders called ``private``, since not even the number of a selection's trials may
    be known, and what ``force=true`` set aside, whose cost was said then. What ``folder`` itself is
    called does not matter.
    """
    found = []
    for path, names, _ in os.walk(folder):
        names[:] = [name for name in names if name != PRIVATE and not _SET_ASIDE.search(name)]
        if is_run(Path(path)):
            found.append(Path(path))
    return sorted(found)


def run_names(paths: Sequence[Path]) -> list[str]:
    """What runs are called beside each other: names of their folders, or paths below a common one.

    Args:
        paths: of runs, or of their records.
    """
    runs = [_folder(path) for path in paths]
    short = [run.name for run in runs]
    if len(set(short)) == len(set(runs)):
        return short
    base = common_folder(runs)
    return [run.relative_to(base).as_posix() for run in runs]


def common_folder(runs: Sequence[Path]) -> Path:
    """The folder that holds them all."""
    return Path(os.path.commonpath([run.parent for run in runs]))


def _folder(path: Path) -> Path:
    # Not resolved: a link may have a name that tells more.
    whole = Path(os.path.abspath(path))  # noqa: PTH100
    return whole.parent if whole.name == "record.json" else whole
