"""A table as CSV: one line a cell, every field of it."""

from __future__ import annotations

import csv
import io
from typing import Any

from dpft.reproduce.papers.schema import Column, Row, show_label
from dpft.reproduce.tables.cells import Cell, Filled
from dpft.reproduce.tables.epsilons import EpsilonCell
from dpft.reproduce.tables.text_table import shown_extra, shown_path


def as_csv(filled: Filled) -> str:
    """A line a cell, after the row's labels (``is:NAME``) and the table; epsilons are cells too."""
    lines = []
    for row in filled.rows:
        place = _place(filled, row.row)
        for column, cell in zip(filled.columns, row.cells, strict=True):
            lines.append(place | _cell(cell, row.row, column))
        lines += [place | _epsilon(epsilon, row.row) for epsilon in row.epsilons]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def _place(filled: Filled, row: Row) -> dict[str, Any]:
    return {
        **{f"is:{name}": show_label(value) for name, value in row.labels.items()},
        "table": filled.table.name,
        "scale": filled.scale,
        "overrides": shown_extra(filled),
        "source": filled.table.source,
    }


def _cell(cell: Cell, row: Row, column: Column) -> dict[str, Any]:
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
        "copied_from": row.taken_from or "",
        "why": row.why or "",
        "runs": " ".join(map(shown_path, cell.paths)),
        "config_hashes": " ".join(one.config_hash for one in cell.runs),
    }


def _epsilon(cell: EpsilonCell, row: Row) -> dict[str, Any]:
    return {
        "column": f"epsilon_{cell.accountant}",
        "label": ", ".join(cell.columns),
        "printed": cell.printed,
        "ours": _value(cell.ours),
        "difference": _value(cell.difference),
        "verdict": "reproduced" if cell.within else "not reproduced",
        "copied_from": row.taken_from or "",
        "why": cell.why or row.why or "",
    }


def _value(value: float | None) -> float | str:
    # Ten digits: what binary fractions add beyond them is nobody's measurement.
    return "" if value is None else float(f"{value:.10g}")
