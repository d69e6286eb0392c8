"""Where the config groups lie. Imports nothing else, so that whoever lists them answers at once."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """The packaged config groups: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside, beside = package / "conf", package.parent / "conf"
    return inside if inside.is_dir() else beside
