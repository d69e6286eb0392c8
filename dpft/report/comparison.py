"""Tables of run records, on the terminal or as Markdown. Reads records and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dpft.privacy.guarantee import APPROXIMATION, Guarantee
from dpft.privacy.rounding import down, up
from dpft.privacy.spec import style_in
from dpft.report.console import Console
from dpft.report.held_out import SEEN, may_be_seen
from dpft.report.markdown import table as markdown_table
from dpft.report.terminal import echo
from dpft.runs.lineage import begun_with, names_apart
from dpft.runs.run_index import run_names
from dpft.tasks.metrics.baseline import cautions_of
from dpft.tasks.metrics.shown import figure

Row = dict[str, str]
_LARGE = 1e6  # an epsilon of which digits say nothing
_BETWEEN = 3  # blanks around a column
_NAME = 16  # columns for the name of a run, at least
# Columns by accountant.
_EPSILONS = {"eps PLD": "pld", "eps RDP": "rdp", "eps PRV": "prv", "eps GDP-CLT": "gdp_clt"}


def print_pairs(title: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """A table of name, value and remark."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def show(records: Sequence[tuple[Path, Mapping[str, Any]]], markdown: bool = False) -> None:
    """Print runs side by side: one row each, scores, epsilon by every accountant, labels."""
    names = run_names([path for path, _ in records])
    rows = [row(path, record) for path, record in records]
    rows = [{**cells, "run": name} for cells, name in zip(rows, names, strict=True)]
    kinds = [_scored(record) for _, record in records]
    if len(set(kinds)) > 1:  # numbers of one name, and not of one thing
        both = zip(rows, kinds, strict=True)
        rows = [{"run": cells["run"], "scores of": kind, **cells} for cells, kind in both]
    known = any(cells["eps GDP-CLT"] not in ("none", "-") for cells in rows)
    clt = [f"eps GDP-CLT is an {APPROXIMATION}"] if known else []
    apart = names_apart(pair for _, record in records for pair in begun_with(record))
    remarks = [
        f"{name} had different weights in these runs: their records say which, "
        "under model.weights_sha256"
        for name in apart
    ]
    remarks = [*clt, *remarks]
    if markdown:
        footnotes = [*map(_footnote, names, records), *(f"\nNote: {remark}." for remark in remarks)]
        echo("\n".join([as_markdown(rows), *footnotes]))
    else:
        _print(rows, records)
        for remark in remarks:
            Console().print(f"note: {remark}", highlight=False, markup=False, style="yellow")


def row(path: Path, record: Mapping[str, Any]) -> Row:
    """One run as column names and cells; what the run lacks is left out."""
    cells = {"run": path.name, "clip": style_in(record["config"]["clip"])}
    cells["steps"] = f"{record['training']['steps']}"
    if (kept := (record.get("evaluation") or {}).get("chosen")) is not None:
        cells["weights of step"] = f"{kept}"
    scores = record.get("scores", {})
    split = record["config"]["decode"]["split"]
    if split in scores:
        section = scores[split]
        cells["instances"] = str(section["examples"])
        for metric, value in section["metrics"].items():
            cells[metric] = figure(metric, value, section.get("signature"))
            if (constant := section.get("baselines", {}).get(metric)) is not None:
                cells[f"{metric} of one class"] = f"{constant:.4f}"
    epsilon = Guarantee.of_record(record).epsilon
    for column, key in _EPSILONS.items():
        if key == "pld" and (epsilon is None or "pld" not in epsilon):
            continue  # a column of its own only where some run has it
        cells[column] = "none" if epsilon is None else _epsilon(epsilon, key)
    if "audit" in record:
        cells["eps at least (audit)"] = down(record["audit"]["epsilon_lower"])
    if "canaries" in scores:
        value = scores["canaries"]["metrics"]["exposure"]
        cells["exposure, bits"] = "-" if value is None else f"{value:.2f}"
    cells["seconds"] = f"{record['training']['seconds']:.0f}"
    return cells


def _scored(record: Mapping[str, Any]) -> str:
    """Task and split that a run's scores are of."""
    config = record["config"]
    return f"{(config.get('task') or {}).get('name', '-')}, {config['decode']['split']}"


def _epsilon(epsilon: Mapping[str, Any], accountant: str) -> str:
    """Bounds are rounded up; that of PRV is its upper one, since its estimate promises nothing."""
    value = epsilon.get(accountant)
    if isinstance(value, Mapping):
        value = value["upper"]
    if value is None:
        return "-"
    if value >= _LARGE:
        return f"{value:.2e}"
    return f"{value:.3f}" if accountant == "gdp_clt" else up(value)


def as_markdown(rows: Sequence[Row]) -> str:
    """A Markdown table of all columns that any row has."""
    columns = _columns(rows)
    return markdown_table(columns, ([_cell(r, column) for column in columns] for r in rows))


def _footnote(name: str, entry: tuple[Path, Mapping[str, Any]]) -> str:
    _, record = entry
    guarantee = Guarantee.of_record(record)
    notes = (note.removesuffix(".") for note in _notes(record, guarantee))
    parts = [*record.get("labels", []), guarantee.statement, *notes]
    return f"\n`{name}`: {'; '.join(parts)}."


def _notes(record: Mapping[str, Any], guarantee: Guarantee) -> list[str]:
    seen = [SEEN] if may_be_seen(record) else []
    return [*guarantee.notes, *seen, *cautions_of(record)]


def _cell(r: Row, column: str) -> str:
    if column == "eps PLD" and r.get("eps RDP") == "none":  # of a run that spends nothing
        return r["eps RDP"]
    return r.get(column, "-")


def _columns(rows: Sequence[Row]) -> list[str]:
    seen: dict[str, None] = {}
    for r in rows:
        seen.update(dict.fromkeys(r))
    columns = list(seen)
    if "eps PLD" in columns:
        columns.remove("eps PLD")
        columns.insert(columns.index("eps RDP"), "eps PLD")
    return columns


def _print(rows: Sequence[Row], records: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    """One column a run: few runs with many figures each fit a terminal best so.

    More runs than fit beside each other come in several tables, so that no number is broken.
    """
    console = Console()
    names = _columns(rows)[1:]
    for beside in _fitting(rows, names, console.width):
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("", no_wrap=True)
        # Where names have to be broken, figures must not be: rich would take from all columns.
        broken = _taken(beside, names, whole=True) > console.width
        for r in beside:
            width = _width(r, names)
            how: Any = {"width": width} if broken else {"min_width": width}
            table.add_column(r["run"], justify="right", overflow="fold", **how)
        for name in names:
            table.add_row(name, *(_cell(r, name) for r in beside))
        console.print(table)
    for path, record in records:
        print_remarks(path, record)


def _fitting(rows: Sequence[Row], names: Sequence[str], width: int) -> Iterator[list[Row]]:
    """Runs that stand beside each other on so many columns of a terminal, one at least."""
    beside: list[Row] = []
    for r in rows:
        if beside and _taken([*beside, r], names) > width:
            yield beside
            beside = []
        beside.append(r)
    yield beside


def _taken(beside: Sequence[Row], names: Sequence[str], whole: bool = False) -> int:
    """Columns that a table of these runs takes, with the runs' names broken or whole."""
    widths = [max(len(r["run"]) if whole else 0, _width(r, names)) for r in beside]
    return sum(one + _BETWEEN for one in (max(map(len, names), default=0), *widths))


def _width(r: Row, names: Sequence[str]) -> int:
    """Columns for a run's figures; its name may be broken, into few lines."""
    return max(min(len(r["run"]), _NAME), *(len(_cell(r, name)) for name in names))


def print_remarks(path: Path, record: Mapping[str, Any]) -> None:
    """What must stand below a run's figures: its labels, and its guarantee with caveats."""
    console = Console()
    labels = ", ".join(record.get("labels", []))
    console.print(Text.assemble((str(path), "bold"), f"  ({labels})" if labels else ""))
    print_guarantee(record, "  ")


def print_guarantee(record: Mapping[str, Any], indent: str = "") -> None:
    """Print a run's guarantee with all that must be said with it."""
    console, guarantee = Console(), Guarantee.of_record(record)
    style = None if guarantee.private else "yellow"
    console.print(f"{indent}{guarantee.statement}", highlight=False, markup=False, style=style)
    for note in _notes(record, guarantee):
        console.print(f"{indent}note: {note}", highlight=False, markup=False, style="yellow")
