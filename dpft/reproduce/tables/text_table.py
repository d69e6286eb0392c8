"""A filled table as text: what every output shows, in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.config.schema import Effect, Run, names_with
from dpft.privacy.guarantee import APPROXIMATION
from dpft.reproduce.papers.schema import Column, show_label
from dpft.reproduce.tables.agreement import SHOWN, Agreement
from dpft.reproduce.tables.cells import Cell, Filled, FilledRow
from dpft.reproduce.tables.epsilons import NAMES, WITHIN, EpsilonCell
from dpft.reproduce.tables.marks import Mark
from dpft.reproduce.tables.plan import key_of
from dpft.reproduce.tables.verdicts import CellVerdict

# Of no experiment, by the schema; and where a machine keeps the data.
_BESIDE = names_with(Run, Effect.PLACE, Effect.EXECUTION)
_DATA = "task.data_dir"


@dataclass(frozen=True)
class CellLine:
    """A line of a cell.

    Attributes:
        text: the line.
        kind: ``printed``, ``ours``, ``matches``, ``better``, ``worse``, ``trend`` or ``quiet``.
        title: what says more of it, where it can be asked for.
    """

    text: str
    kind: str
    title: str = ""


@dataclass(frozen=True)
class TextCell:
    """A cell's lines; ``short``: they are written as one."""

    parts: tuple[CellLine, ...]
    short: bool = False

    @property
    def lines(self) -> list[str]:
        """The text of each line."""
        texts = [part.text for part in self.parts]
        return [" ".join(texts)] if self.short else texts


@dataclass(frozen=True)
class TextTable:
    """A table as text.

    Attributes:
        title: with the scale.
        names: headings of the labels.
        headings: of the other columns: metrics, then epsilons.
        rows: labels and cells of each.
        notes: heading and text of each footnote.
    """

    title: str
    names: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[list[str], list[TextCell]], ...]
    notes: tuple[tuple[str, str], ...]


def as_text_table(filled: Filled) -> TextTable:
    """What is shown of a table, whatever the output."""
    table = filled.table
    accountants = _accountants(filled)
    rows = []
    for row in filled.rows:
        cells = [_cell(c, column) for column, c in zip(filled.columns, row.cells, strict=True)]
        cells += [_epsilon_cell(row, accountant) for accountant in accountants]
        rows.append(([show_label(value) for value in row.row.labels.values()], cells))
    metrics = [f"{c.label} ({c.unit})" if c.unit else c.label for c in filled.columns]
    return TextTable(
        title=f"{table.source}: {table.title} (scale={filled.scale})",
        names=table.label_names,
        headings=(*metrics, *(NAMES[one] for one in accountants)),
        rows=tuple(rows),
        notes=tuple(footnotes(filled)),
    )


def _cell(cell: Cell, column: Column) -> TextCell:
    """What is printed; ours, as mean, deviation and seeds; difference, verdict and marks."""
    parts = [CellLine(_printed(cell, column), "printed")]
    if cell.ours is not None:
        paths = ", ".join(map(shown_path, cell.paths))
        parts.append(CellLine(_ours(cell, cell.ours, column), "ours", paths))
    if cell.verdict is not CellVerdict.NOT_PRINTED:
        difference = "" if cell.difference is None else f"{cell.difference:+.{column.decimals}f}"
        letters = "".join(mark.letter for mark in cell.marks)
        text = " ".join(filter(None, (difference, cell.verdict.sign, letters)))
        said = "; ".join([str(cell.verdict), *(mark.meaning for mark in cell.marks)])
        parts.append(CellLine(text, _kind(cell, column), said))
    return TextCell(tuple(parts), short=cell.ours is None)


def _kind(cell: Cell, column: Column) -> str:
    if cell.verdict in (CellVerdict.MATCHES, CellVerdict.TREND):
        return str(cell.verdict)
    if cell.verdict in (CellVerdict.ABOVE, CellVerdict.BELOW):
        better = (cell.verdict is CellVerdict.ABOVE) == column.higher_is_better
        return "better" if better else "worse"
    return "quiet"


def number(value: float, column: Column) -> str:
    """With the printed number of decimals."""
    return f"{value:.{column.decimals}f}"


def _printed(cell: Cell, column: Column) -> str:
    """``61.5 ± 0.3``, or with its interval; a dash for a dash.

    With a question mark where the paper does not say what stands behind the sign.
    """
    if cell.printed is None:
        return "-"
    text = number(cell.printed, column)
    if cell.std is not None:
        text += f" ± {_whole(cell.std, column)}"
    if cell.unexplained is not None:
        text += f" ± {_whole(cell.unexplained, column)}?"
    if cell.ci95 is not None:
        text += f" [{_whole(cell.ci95[0], column)}, {_whole(cell.ci95[1], column)}]"
    return text


def _whole(value: float, column: Column) -> str:
    """With the column's number of decimals, or more: some papers print more of a deviation."""
    short = number(value, column)
    return short if float(short) == value else f"{value:g}"


def _ours(cell: Cell, value: float, column: Column) -> str:
    """``60.9 ± 0.2 (2/3)``: mean, deviation, seeds found of those wanted."""
    text = number(value, column)
    if cell.deviation is not None:
        text += f" ± {number(cell.deviation, column)}"
    seeds = f"{cell.found}/{cell.wanted}" if cell.found < cell.wanted else f"{cell.found}"
    return f"{text} ({seeds})"


def _accountants(filled: Filled) -> list[str]:
    """Those that any row prints an epsilon of."""
    present = {cell.accountant for row in filled.rows for cell in row.epsilons}
    return [name for name in NAMES if name in present]


def _epsilon_cell(row: FilledRow, accountant: str) -> TextCell:
    cells = [cell for cell in row.epsilons if cell.accountant == accountant]
    return TextCell(tuple(map(_epsilon_line, cells)))


def _epsilon_line(cell: EpsilonCell) -> CellLine:
    """``2.68 / 2.66 =``: printed, ours, and whether it is reproduced; columns where they differ."""
    value = "none" if cell.ours is None else f"{cell.ours:.3f}"
    text = f"{cell.printed:g} / {value} {'=' if cell.within else '≠'}"
    columns = ", ".join(cell.columns)
    return CellLine(f"{columns}: {text}" if columns else text, "quiet" if cell.within else "worse")


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
    verdicts = [v for v in CellVerdict if any(c.verdict is v for c in filled.cells)]
    notes.append(("Verdicts", "; ".join(f"{v.sign} {v}: {v.meaning}" for v in verdicts)))
    marks = [m for m in Mark if any(m in c.marks for c in filled.cells)]
    if marks:
        notes.append(("Marks", "; ".join(f"{m.letter}: {m.meaning}" for m in marks)))
    notes += [("Order of rows", _order(one)) for one in filled.agreement]
    notes += [("Seeds unlike each other", text) for text in filled.unlike]
    if _accountants(filled):
        notes.append(("Epsilon", _epsilon_note(filled)))
    notes += [("Copied, and run here", text) for text in _copied(filled, run=True)]
    notes += [("Not to be had", text) for text in _rows_without_run(filled)]
    notes += [
        ("Row", f"{r.row.name}: {'; '.join(r.row.marks)}") for r in filled.rows if r.row.marks
    ]
    if filled.plan.skipped:
        notes.append(("Left out here", "; ".join(row.name for row in filled.plan.skipped)))
    if table.unknown:
        notes.append(("Not printed by the paper", ", ".join(table.unknown)))
    notes += [("Choice", text) for text in table.choices]
    return [*notes, *(("Note", text) for text in table.notes)]


def shown_extra(filled: Filled) -> str:
    """The user's overrides as they may be published; empty without any."""
    return " ".join(word for word in map(_without_place, filled.plan.extra) if word)


def _without_place(word: str) -> str:
    """An override as it may be published: nothing of where and how a machine runs it."""
    key, _, value = word.partition("=")
    name = key_of(word)
    if name == _DATA or name.partition(".")[0] in _BESIDE:
        return ""
    return f"{key}=..." if "/" in value else word


def _scale(filled: Filled) -> str:
    seeds = f"seeds asked for: {', '.join(map(str, filled.plan.seeds))}"
    laptop = filled.table.laptop
    if filled.scale == "laptop" and laptop is not None:
        return f"LAPTOP SCALE, no number is of the paper's setting. {laptop.says} {seeds}"
    over = filled.table.seeds
    if over is None:
        says = "does not say over how many seeds it averages"
    else:
        says = "prints one run" if over == 1 else f"averages over {over} seeds"
    return f"the paper's own setting; the paper {says}; {seeds}"


def _order(one: Agreement) -> str:
    tau = "undefined" if one.tau is None else f"{one.tau:+.2f}"
    text = f"{one.column.label}: Kendall's tau {tau} over {one.rows} rows"
    if not one.clear:
        return f"{text}; the paper orders no pair of them clearly"
    text += (
        f"; of {one.clear} pairs that the paper orders clearly, ours orders {one.same} the same "
        f"way, does not tell {one.close} apart and reverses {len(one.reversed)}"
    )
    pairs = [
        f"{pair.higher} over {pair.lower} ({number(pair.printed[0], one.column)} and "
        f"{number(pair.printed[1], one.column)}; ours {number(pair.ours[0], one.column)} and "
        f"{number(pair.ours[1], one.column)})"
        for pair in one.reversed[:SHOWN]
    ]
    if len(one.reversed) > SHOWN:
        pairs.append(f"{len(one.reversed) - SHOWN} more")
    return f"{text}: {'; '.join(pairs)}" if pairs else text


def _epsilon_note(filled: Filled) -> str:
    cells = [(row, cell) for row in filled.rows for cell in row.epsilons]
    text = (
        "printed / ours, from the paper's settings and the published number of records, at every "
        f"scale; {sum(c.within for _, c in cells)} of {len(cells)} within {WITHIN}. PRV's is its "
        "estimate, as papers print it, where records state its upper bound"
    )
    if "gdp_clt" in _accountants(filled):
        text += f". GDP-CLT is an {APPROXIMATION}"
    if filled.table.unequal is not None and not all(c.within for _, c in cells):
        text += f". Why some differ (≠): {filled.table.unequal}"
    reasons = dict.fromkeys(f"{row.row.name}: {c.why}" for row, c in cells if c.why is not None)
    return "; ".join([text, *reasons])


def _copied(filled: Filled, run: bool) -> list[str]:
    """Rows that the paper took from elsewhere, those that this scale runs or the others."""
    names: dict[str, list[str]] = {}
    for row in (r.row for r in filled.rows if r.row.taken_from is not None):
        if (row.run is not None) is run:
            names.setdefault(f"copied by the paper from {row.taken_from}", []).append(row.name)
    return _listed(names)


def _rows_without_run(filled: Filled) -> list[str]:
    names: dict[str, list[str]] = {}
    for row in (r.row for r in filled.rows):
        if row.run is None and row.taken_from is None and row.why is not None:
            names.setdefault(row.why, []).append(row.name)
    unmeasured = [column.label for column in filled.columns if not column.metrics]
    if unmeasured:
        names.setdefault("no score of a run", []).extend(unmeasured)
    return [*_copied(filled, run=False), *_listed(names)]


def _listed(names: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{'; '.join(of)}: {why}" for why, of in names.items()]
