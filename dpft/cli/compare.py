"""``dpft compare``: several runs' scores and guarantees side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpft import runs
from dpft.report.comparison import show
from dpft.report.terminal import echo
from dpft.runs.hidden import check_no_trial


def main(paths: Sequence[Path], markdown: bool) -> None:
    """Print the runs side by side; folders without a record are named and left out.

    Raises:
        ConfigError: if one is a secret trial of a selection.
        RecordError: if no path is a run that was trained, one does not exist, or its record is
            damaged.
    """
    for path in paths:
        check_no_trial(path)
    left_out = [path for path in paths if path.exists() and not _has_record(path)]
    if len(left_out) == len(paths):
        runs.read_record(paths[0])  # says what is missing
    found = [(path, runs.read_record(path)) for path in paths if path not in left_out]
    for path in left_out:
        echo(f"skipped {path}: not finished", err=True)
    show(found, markdown=markdown)


def _has_record(path: Path) -> bool:
    # A file is read as a record; a page that `dpft report` left among the runs is none.
    return path.suffix == ".json" if path.is_file() else (path / "record.json").exists()
