"""A filled table as CSV: one line a cell, every field of it."""

from __future__ import annotations

import csv
import io
from typing import Any

from dpft.reproduce.papers.schema import Column, show_label
from dpft.reproduce.tables.cells import Cell, Filled
from dpft.reproduce.tables.epsilons import EpsilonCell
from dpft.reproduce.tables.shown import shown_extra, shown_path

FIELDS = (
    *("table", "scale", "overrides", "source"),
    *("column", "label", "unit", "split", "metric", "better"),
    *("printed", "printed_std", "printed_low", "printed_high", "printed_unexplained"),
    *("ours", "deviation"),
    *("seeds_found", "seeds_wanted", "difference", "verdict", "marks", "copied_from", "why"),
    *("runs", "config_hashes"),
)


def as_csv(filled: Filled) -> str:
    """Lines of `FIELDS` after the row's labels (``is:NAME``); epsilons are cells too."""
    names = [f"is:{name}" for name in filled.table.label_names]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*names, *FIELDS], lineterminator="\n", restval="")
    writer.writeheader()
    for row in filled.rows:
        told = dict(zip(names, map(show_label, row.row.labels.values()), strict=True))
        told |= {
            "table": filled.table.name,
            "scale": filled.scale,
            "overrides": shown_extra(filled),
            "source": filled.table.source,
            "copied_from": row.row.taken_from or "",
            "why": row.row.why or "",
        }
        for column, cell in zip(filled.columns, row.cells, strict=True):
            writer.writerow(told | _cell(cell, column))
        for epsilon in row.epsilons:
            writer.writerow(told | _epsilon(epsilon))
    return stream.getvalue()


def _cell(cell: Cell, column: Column) -> dict[str, Any]:
    low, high = cell.ci95 or ("", "")
    return {
        "column": column.key,
        "label": column.label,
        "unit": column.unit or "",
        "split": column.split,
        "metric": " ".join(column.metrics),
        "better": "higher" if column.higher_is_better else "lower",
        "printed": _value(cell.printed),
        "printed_std": _value(cell.std),
        "printed_low": low,
        "printed_high": high,
        "printed_unexplained": _value(cell.unexplained),
        "ours": _value(cell.ours),
        "deviation": _value(cell.deviation),
        "seeds_found": cell.found,
        "seeds_wanted": cell.wanted,
        "difference": _value(cell.difference),
        "verdict": str(cell.verdict),
        "marks": "".join(mark.letter for mark in cell.marks),
        "runs": " ".join(map(shown_path, cell.paths)),
        "config_hashes": " ".join(cell.hashes),
    }


def _epsilon(cell: EpsilonCell) -> dict[str, Any]:
    return {
        "column": f"epsilon_{cell.accountant}",
        "label": ", ".join(cell.columns),
        "printed": cell.printed,
        "ours": _value(cell.ours),
        "difference": _value(cell.difference),
        "verdict": "reproduced" if cell.within else "not reproduced",
        **({"why": cell.why} if cell.why else {}),
    }


def _value(value: float | None) -> float | str:
    # Ten digits: what binary fractions add beyond them is nobody's measurement.
    return "" if value is None else float(f"{value:.10g}")
