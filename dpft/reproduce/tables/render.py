"""A filled table as text, which is shown on the terminal, as Markdown and as CSV."""

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from dpft.config.schema import Effect, Run, names_with
from dpft.privacy.guarantee import APPROXIMATION
from dpft.report.text_table import TextTable, as_csv
from dpft.reproduce.papers import Column, show_label
from dpft.reproduce.tables.cells import NAMES, WITHIN, Cell, Filled, shown_path
from dpft.reproduce.tables.planned import key_of
from dpft.reproduce.tables.verdicts import CellVerdict, Mark

SUFFIXES = (".md", ".csv")
# Settings that, by the schema, are no part of an experiment, and the place of the data.
_NO_EXPERIMENT = names_with(Run, Effect.PLACE, Effect.EXECUTION)
_DATA = "task.data_dir"


def text_of(filled: Filled, suffix: str) -> str:
    """Return table and footnotes as the content of a file with one of the `SUFFIXES`."""
    return as_lines(filled) if suffix == ".csv" else as_text_table(filled).as_markdown()


def as_text_table(filled: Filled) -> TextTable:
    """Return the text of a filled table: labels, then metrics and epsilons, and footnotes."""
    table, columns = filled.plan.table, filled.plan.columns
    accountants = _accountants(filled)
    rows: list[list[str | Text]] = []
    for row in filled.rows:
        cells: list[str | Text] = [show_label(value) for value in row.row.labels.values()]
        cells += [_cell(cell, column) for cell, column in zip(row.cells, columns, strict=True)]
        for accountant in accountants:
            # ``2.68 / 2.66 =``: printed, ours, and whether it is reproduced.
            lines = []
            for cell in (cell for cell in row.epsilons if cell.accountant == accountant):
                value = "none" if cell.ours is None else f"{cell.ours:.3f}"
                of = f"{', '.join(cell.columns)}: " if cell.columns else ""
                text = f"{of}{cell.printed:g} / {value} {'=' if cell.within else '≠'}"
                lines.append(text)
            cells.append("\n".join(lines))
        rows.append(cells)
    metrics = [f"{c.label} ({c.unit})" if c.unit else c.label for c in columns]
    return TextTable(
        title=f"{table.source}: {table.title} (scale={filled.plan.scale})",
        headings=(*table.label_names, *metrics, *(NAMES[one] for one in accountants)),
        rows=rows,
        left=len(table.label_names),
        notes=footnotes(filled),
    )


def _cell(cell: Cell, column: Column) -> Text:
    """Return the printed number; ours; and the difference with verdict and marks."""
    printed = "-" if cell.printed is None else number(cell.printed, column)
    if cell.std is not None:
        printed += f" ± {_whole(cell.std, column)}"
    if cell.unexplained is not None:
        printed += f" ± {_whole(cell.unexplained, column)}?"
    if cell.ci95 is not None:
        printed += f" [{_whole(cell.ci95[0], column)}, {_whole(cell.ci95[1], column)}]"
    verdict = ""
    if cell.verdict is not CellVerdict.NOT_PRINTED:
        difference = "" if cell.difference is None else f"{cell.difference:+.{column.decimals}f}"
        letters = "".join(mark.letter for mark in cell.marks)
        verdict = " ".join(filter(None, (difference, cell.verdict.sign, letters)))
    if cell.ours is None:
        return Text(" ".join(filter(None, (printed, verdict))), "dim")
    ours = number(cell.ours, column)
    if cell.deviation is not None:
        ours += f" ± {number(cell.deviation, column)}"
    ours += f" ({cell.found}/{cell.wanted})" if cell.found < cell.wanted else f" ({cell.found})"
    shown = Text.assemble((printed, "dim"), "\n", (ours, "bold"))
    return shown.append(f"\n{verdict}") if verdict else shown


def number(value: float, column: Column) -> str:
    """Return a value with the printed number of decimals."""
    return f"{value:.{column.decimals}f}"


def _whole(value: float, column: Column) -> str:
    """Return a deviation with the column's decimals, or more: some papers print more of it."""
    short = number(value, column)
    return short if float(short) == value else f"{value:g}"


def _accountants(filled: Filled) -> list[str]:
    present = {cell.accountant for row in filled.rows for cell in row.epsilons}
    return [name for name in NAMES if name in present]


def footnotes(filled: Filled) -> list[tuple[str, str]]:
    """Return heading and text of each note that must be read with the table."""
    table = filled.plan.table
    notes = [("Scale", _scale(filled))]
    if extra := shown_extra(filled):
        notes.append(("Overrides in addition to the table's", extra))
    notes += [("Cells", "printed; ours, mean ± deviation (seeds); difference and verdict")]
    verdicts = [v for v in CellVerdict if any(c.verdict is v for c in filled.cells)]
    notes.append(("Verdicts", "; ".join(f"{v.sign} {v}: {v.meaning}" for v in verdicts)))
    marks = [m for m in Mark if any(m in c.marks for c in filled.cells)]
    if marks:
        notes.append(("Marks", "; ".join(f"{m.letter}: {m.meaning}" for m in marks)))
    if _accountants(filled):
        notes.append(("Epsilon", _epsilon_note(filled)))
    rows = [one.row for one in filled.rows]
    copied = [(row.name, row.taken_from) for row in rows if row.taken_from is not None]
    notes += [("Copied by the paper", text) for text in _by_reason(copied)]
    lacking = [(x.name, x.why) for x in rows if x.taken_from is None and x.why is not None]
    lacking += [(x.label, "no score of a run") for x in filled.plan.columns if not x.metrics]
    notes += [("Never run", text) for text in _by_reason(lacking)]
    notes += [("Row", f"{row.name}: {'; '.join(row.marks)}") for row in rows if row.marks]
    if filled.plan.skipped:
        notes.append(("Left out here", "; ".join(row.name for row in filled.plan.skipped)))
    if table.unknown:
        notes.append(("Not printed by the paper", ", ".join(table.unknown)))
    notes += [("Choice", text) for text in table.choices]
    return [*notes, *(("Note", text) for text in table.notes)]


def shown_extra(filled: Filled) -> str:
    """Return the user's overrides as they may be published, without folders and machines."""
    words = []
    for word in filled.plan.extra:
        key, _, value = word.partition("=")
        name = key_of(word)
        if name != _DATA and name.partition(".")[0] not in _NO_EXPERIMENT:
            words.append(f"{key}=..." if "/" in value else word)
    return " ".join(words)


def _scale(filled: Filled) -> str:
    seeds = f"seeds asked for: {', '.join(map(str, filled.plan.seeds))}"
    seeds += ", and any other that was run" if filled.plan.any_seed else ""
    laptop = filled.plan.table.laptop
    if filled.plan.scale == "laptop" and laptop is not None:
        return f"LAPTOP SCALE, no number is of the paper's setting. {laptop.says} {seeds}"
    says = {None: "does not say over how many seeds it averages", 1: "prints one run"}
    over = filled.plan.table.seeds
    known = says.get(over, f"averages over {over} seeds")
    return f"the paper's own setting; the paper {known}; {seeds}"


def _epsilon_note(filled: Filled) -> str:
    cells = [(row, cell) for row in filled.rows for cell in row.epsilons]
    text = (
        "printed / ours, from the paper's settings and the published number of records, at every "
        f"scale; {sum(c.within for _, c in cells)} of {len(cells)} within {WITHIN}. PRV's is its "
        "estimate, as papers print it, where records state its upper bound"
    )
    if "gdp_clt" in _accountants(filled):
        text += f". GDP-CLT is an {APPROXIMATION}"
    if filled.plan.table.unequal is not None and not all(c.within for _, c in cells):
        text += f". Why some differ (≠): {filled.plan.table.unequal}"
    reasons = dict.fromkeys(f"{row.row.name}: {c.why}" for row, c in cells if c.why is not None)
    return "; ".join([text, *reasons])


def _by_reason(named: Iterable[tuple[str, str]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, why in named:
        names.setdefault(why, []).append(name)
    return [f"{'; '.join(of)}: {why}" for why, of in names.items()]


def as_lines(filled: Filled) -> str:
    """Return a line for each cell, with its row's labels as ``is:NAME``."""
    lines: list[dict[str, Any]] = []
    for filled_row in filled.rows:
        row = filled_row.row
        for column, cell in zip(filled.plan.columns, filled_row.cells, strict=True):
            low, high = cell.ci95 or (None, None)
            lines.append(
                {
                    **{f"is:{k}": show_label(value) for k, value in row.labels.items()},
                    **{"table": filled.plan.table.name, "scale": filled.plan.scale},
                    **{"overrides": shown_extra(filled), "why": row.why or row.taken_from or ""},
                    **{"column": column.key, "label": column.label},
                    "better": "higher" if column.higher_is_better else "lower",
                    **{"printed": cell.printed, "printed_std": cell.std},
                    **{"printed_low": low, "printed_high": high},
                    **{"printed_unexplained": cell.unexplained, "ours": cell.ours},
                    **{"deviation": cell.deviation, "difference": cell.difference},
                    **{"seeds_found": cell.found, "seeds_wanted": cell.wanted},
                    "verdict": str(cell.verdict),
                    "marks": "".join(mark.letter for mark in cell.marks),
                    "runs": " ".join(map(shown_path, cell.paths)),
                }
            )
    rows: list[list[object]] = [list(lines[0])]
    for line in lines:
        # Ten digits: what binary fractions add to them was not measured.
        values = line.values()
        rows.append([float(f"{x:.10g}") if isinstance(x, float) else x for x in values])
    return as_csv(rows)
