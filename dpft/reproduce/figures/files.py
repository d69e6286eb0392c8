"""A figure's files: PNG and SVG to look at, CSV with the very numbers that are drawn."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from dpft.reproduce.figures.content import Content, rows
from dpft.runs.atomic import write_atomic

_FIELDS = ("panel", "series", "origin", "x", "y", "deviation", "label", "marks", "source")


def save(content: Content, folder: Path) -> list[Path]:
    """Write ``NAME.png``, ``NAME.svg`` and ``NAME.csv``; equal content gives equal files.

    Returns:
        The three paths.
    """
    import matplotlib

    from dpft.reproduce.figures.draw import draw
    from dpft.reproduce.figures.style import DPI, RC

    # The figure below is never shown, and a machine may have no display.
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if content.private else 0o644
    paths = [folder / f"{content.stem}.{suffix}" for suffix in ("png", "svg", "csv")]
    with matplotlib.rc_context(RC):
        figure = draw(content)
        for path in paths[:2]:
            buffer = io.BytesIO()
            metadata = {"Date": None} if path.suffix == ".svg" else {"Software": "dpft"}
            figure.savefig(buffer, format=path.suffix[1:], dpi=DPI, metadata=metadata)
            write_atomic(path, buffer.getvalue(), mode=mode)
    write_atomic(paths[2], as_csv(content), mode=mode)
    return paths


def as_csv(content: Content) -> str:
    """One line a number. ``x`` and ``series`` are names where the axis has names."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(content))
    return out.getvalue()
