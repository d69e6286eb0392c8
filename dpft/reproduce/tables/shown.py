"""How numbers, labels and footnotes read, the same in every output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpft.reproduce.papers.schema import Column, show_label
from dpft.reproduce.tables.agreement import SHOWN, Agreement
from dpft.reproduce.tables.cells import Cell, Filled, FilledRow
from dpft.reproduce.tables.epsilons import NAMES, WITHIN, EpsilonCell
from dpft.reproduce.tables.marks import Mark
from dpft.reproduce.tables.plan import key_of
from dpft.reproduce.tables.verdicts import MEANINGS, SIGNS, Verdict

_PLACES = ("device", "threads", "runs_dir", "checkpoint_every", "task.data_dir")
# Epsilons that are reproduced, and those that are not.
EPSILON_SIGNS = {True: "=", False: "≠"}


def number(value: float, column: Column) -> str:
    """With the printed number of decimals."""
    return f"{value:.{column.decimals}f}"


def printed(cell: Cell, column: Column) -> str:
    """``61.5 ± 0.3``, or with its interval; a dash for a dash.

    With a question mark where the paper does not say what stands behind the sign.
    """
    if cell.printed is None:
        return "-"
    text = number(cell.printed, column)
    if cell.std is not None:
        text += f" ± {number(cell.std, column)}"
    if cell.unexplained is not None:
        text += f" ± {number(cell.unexplained, column)}?"
    if cell.ci95 is not None:
        text += f" [{number(cell.ci95[0], column)}, {number(cell.ci95[1], column)}]"
    return text


def ours(cell: Cell, column: Column) -> str:
    """``60.9 ± 0.2 (2/3)``: mean, deviation, seeds found of those wanted; empty without any."""
    if cell.ours is None:
        return ""
    text = number(cell.ours, column)
    if cell.deviation is not None:
        text += f" ± {number(cell.deviation, column)}"
    seeds = f"{cell.found}/{cell.wanted}" if cell.found < cell.wanted else f"{cell.found}"
    return f"{text} ({seeds})"


def judged(cell: Cell, column: Column) -> str:
    """Difference, sign of the verdict, letters of the marks."""
    if cell.verdict is Verdict.NOT_PRINTED:
        return ""
    parts = [f"{cell.difference:+.{column.decimals}f}"] if cell.difference is not None else []
    parts.append(SIGNS[cell.verdict])
    letters = "".join(mark.letter for mark in cell.marks)
    return " ".join([*parts, letters] if letters else parts)


def lines(cell: Cell, column: Column) -> list[str]:
    """A cell's lines: what is printed, ours, the judgement; one line without a number of ours."""
    first, second, third = printed(cell, column), ours(cell, column), judged(cell, column)
    if not second:
        return [f"{first} {third}".rstrip()]
    return [first, second, third]


def epsilon_line(cell: EpsilonCell) -> str:
    """``2.68 / 2.66 =``: printed, ours, and whether it is reproduced; columns where they differ."""
    value = "none" if cell.ours is None else f"{cell.ours:.3f}"
    text = f"{cell.printed:g} / {value} {EPSILON_SIGNS[cell.within]}"
    return f"{', '.join(cell.columns)}: {text}" if cell.columns else text


def accountants(filled: Filled) -> list[str]:
    """Those that any row prints an epsilon of."""
    present = {cell.accountant for row in filled.rows for cell in row.epsilons}
    return [name for name in NAMES if name in present]


def epsilon_lines(row: FilledRow, accountant: str) -> list[str]:
    """A row's lines under an accountant."""
    return [epsilon_line(cell) for cell in row.epsilons if cell.accountant == accountant]


def headings(filled: Filled) -> list[str]:
    """Of the labels, the metrics and the epsilons."""
    metrics = [f"{c.label} ({c.unit})" if c.unit else c.label for c in filled.columns]
    return [*filled.table.label_names, *metrics, *(NAMES[a] for a in accountants(filled))]


def labels(row: FilledRow) -> list[str]:
    """What tells the row."""
    return [show_label(value) for value in row.row.labels.values()]


def title(filled: Filled) -> str:
    """The table's, with the scale."""
    return f"{filled.table.source}: {filled.table.title} (scale={filled.scale})"


def shown_path(path: Path) -> str:
    """A run directory without the folders of this machine."""
    if not path.is_absolute():
        return path.as_posix()
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    return "/".join(path.parts[-2:])


def footnotes(filled: Filled) -> list[tuple[str, str]]:
    """What must be read with the table: heading and text of each note."""
    table = filled.table
    notes = [("Scale", _scale(filled))]
    if extra := shown_extra(filled):
        notes.append(("Overrides beside the table's", extra))
    notes += [("Cells", "printed; ours, mean ± deviation (seeds); difference and verdict")]
    verdicts = [v for v in Verdict if any(c.verdict is v for _, _, c in filled.cells)]
    notes.append(("Verdicts", "; ".join(f"{SIGNS[v]} {v}: {MEANINGS[v]}" for v in verdicts)))
    marks = [m for m in Mark if any(m in c.marks for _, _, c in filled.cells)]
    if marks:
        notes.append(("Marks", "; ".join(f"{m.letter}: {m.meaning}" for m in marks)))
    notes += [("Order of rows", _order(one)) for one in filled.agreement]
    notes += [("Seeds unlike each other", text) for text in filled.unlike]
    if accountants(filled):
        notes.append(("Epsilon", _epsilon_note(filled)))
    notes += [("Copied, and run here", text) for text in _copied(filled, run=True)]
    notes += [("Not to be had", text) for text in _rows_without_run(filled)]
    notes += [
        ("Row", f"{r.row.name}: {'; '.join(r.row.marks)}") for r in filled.rows if r.row.marks
    ]
    if filled.skipped:
        notes.append(("Left out here", "; ".join(row.name for row in filled.skipped)))
    if table.unknown:
        notes.append(("Not printed by the paper", ", ".join(table.unknown)))
    notes += [("Choice", text) for text in table.choices]
    return [*notes, *(("Note", text) for text in table.notes)]


def shown_extra(filled: Filled) -> str:
    """The user's overrides as they may be published; empty without any."""
    return " ".join(word for word in map(_without_place, filled.extra) if word)


def _without_place(word: str) -> str:
    """An override as it may be published: nothing of where a machine keeps things."""
    key, _, value = word.partition("=")
    if key_of(word) in _PLACES:
        return ""
    return f"{key}=..." if "/" in value else word


def _scale(filled: Filled) -> str:
    seeds = f"seeds asked for: {', '.join(map(str, filled.seeds))}"
    laptop = filled.table.laptop
    if filled.scale == "laptop" and laptop is not None:
        return f"LAPTOP SCALE, no number is of the paper's setting. {laptop.says} {seeds}"
    over = filled.table.seeds
    told = "does not say over how many seeds it averages" if over is None else None
    told = told or ("prints one run" if over == 1 else f"averages over {over} seeds")
    return f"the paper's own setting; the paper {told}; {seeds}"


def _order(one: Agreement) -> str:
    tau = "undefined" if one.tau is None else f"{one.tau:+.2f}"
    text = f"{one.column.label}: Kendall's tau {tau} over {one.rows} rows"
    if not one.clear:
        return f"{text}; the paper orders no pair of them clearly"
    text += (
        f"; of {one.clear} pairs that the paper orders clearly, ours orders {one.same} the same "
        f"way, does not tell {one.close} apart and reverses {len(one.reversed)}"
    )
    told = [
        f"{pair.higher} over {pair.lower} ({number(pair.printed[0], one.column)} and "
        f"{number(pair.printed[1], one.column)}; ours {number(pair.ours[0], one.column)} and "
        f"{number(pair.ours[1], one.column)})"
        for pair in one.reversed[:SHOWN]
    ]
    more = [f"{len(one.reversed) - SHOWN} more"] if len(one.reversed) > SHOWN else []
    return f"{text}: {'; '.join([*told, *more])}" if told else text


def _epsilon_note(filled: Filled) -> str:
    cells = [(row, cell) for row in filled.rows for cell in row.epsilons]
    text = (
        "printed / ours, from the paper's settings and the published number of records, at every "
        f"scale; {sum(c.within for _, c in cells)} of {len(cells)} within {WITHIN}. PRV's is its "
        "estimate, as papers print it, where records state its upper bound"
    )
    reasons = dict.fromkeys(f"{row.row.name}: {c.why}" for row, c in cells if c.why is not None)
    return "; ".join([text, *reasons])


def _copied(filled: Filled, run: bool) -> list[str]:
    """Rows that the paper took from elsewhere, those that this scale runs or the others."""
    told: dict[str, list[str]] = {}
    for row in (r.row for r in filled.rows if r.row.taken_from is not None):
        if (row.run is not None) is run:
            told.setdefault(f"copied by the paper from {row.taken_from}", []).append(row.name)
    return _listed(told)


def _rows_without_run(filled: Filled) -> list[str]:
    told: dict[str, list[str]] = {}
    for row in (r.row for r in filled.rows):
        if row.run is None and row.taken_from is None and row.why is not None:
            told.setdefault(row.why, []).append(row.name)
    for column in filled.columns:
        if not column.metrics:
            told.setdefault("no score of a run", []).append(column.label)
    return [*_copied(filled, run=False), *_listed(told)]


def _listed(told: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{'; '.join(names)}: {why}" for why, names in told.items()]
