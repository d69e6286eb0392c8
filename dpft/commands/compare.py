"""``dpft compare``: several runs' scores and guarantees side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpft import runs
from dpft.report import show


def main(paths: Sequence[Path], markdown: bool) -> None:
    """Print the runs side by side."""
    show([(path, runs.read_record(path)) for path in paths], markdown=markdown)
