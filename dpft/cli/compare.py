"""``dpft compare``: several runs' scores and guarantees side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpft import runs
from dpft.cli.output import warn
from dpft.report.comparison import show
from dpft.report.terminal import echo
from dpft.runs.finished import LEDGER, RECORD
from dpft.runs.folders import check_no_trial


def main(
    folders: Annotated[list[Path], typer.Argument(help="Run directories.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Scores and guarantees of several runs side by side: dpft compare runs/*"""
    for path in folders:
        check_no_trial(path)
    left_out = [path for path in folders if path.exists() and not _has_record(path)]
    if len(left_out) == len(folders):
        runs.read_record(folders[0])  # says what is missing
    found = [(path, runs.read_record(path)) for path in folders if path not in left_out]
    for path in left_out:
        begun = (path / "config.yaml").exists()  # other folders beside runs are sweeps' and caches
        echo(f"skipped {path}: {'not finished' if begun else 'no run'}", err=True)
    show(found, markdown=markdown)
    for path, _ in found:
        for damage in runs.damages(path, (RECORD, LEDGER), thorough=False):
            warn(f"{path}: {damage}, though the run was finished: do not rely on it", err=True)


def _has_record(path: Path) -> bool:
    # A file is read as a record; a page that `dpft report` left among the runs is none.
    return path.suffix == ".json" if path.is_file() else (path / "record.json").exists()
