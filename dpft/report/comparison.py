"""Run records on the terminal: figures of several runs side by side, and guarantees."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from dpft.config.flags import sentences
from dpft.privacy.guarantee import APPROXIMATION, Guarantee
from dpft.privacy.rounding import down, up
from dpft.privacy.spec import style_in
from dpft.report.console import Console
from dpft.report.statements import SEEN, may_be_seen
from dpft.report.text_table import TextTable, markdown_table
from dpft.runs.folders import run_names
from dpft.runs.lineage import ambiguous, first_weights
from dpft.tasks.scores import cautions_of, figure, recalls

Row = dict[str, str]
_LARGE = 1e6  # beyond it the digits of an epsilon say nothing
_EPSILONS = {"eps PLD": "pld", "eps RDP": "rdp", "eps PRV": "prv", "eps GDP-CLT": "gdp_clt"}


def print_pairs(title: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """Print a table of name, value and remark."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def show(records: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    """Print runs side by side, a column each: scores, epsilons, and below them what limits them."""
    rows = []
    for (path, record), name in zip(records, run_names([path for path, _ in records]), strict=True):
        config = record["config"]
        kind = f"{(config.get('task') or {}).get('name', '-')}, {config['decode']['split']}"
        rows.append({"run": "", "scores of": kind} | row(path, record) | {"run": name})
    # Two accuracies side by side look as if they were of the same records.
    if len({cells["scores of"] for cells in rows}) == 1:
        for cells in rows:
            del cells["scores of"]
    names = _columns(rows)[1:]
    metrics = [[name, *(cells.get(name, "-") for cells in rows)] for name in names]
    console = Console()
    TextTable(["", *(cells["run"] for cells in rows)], metrics, left=1).show(console)
    for path, record in records:
        print_remarks(path, record)
    remarks = [
        f"{name} had different weights in these runs: their records say which, under "
        "model.weights_sha256"
        for name in ambiguous(pair for _, record in records for pair in first_weights(record))
    ]
    if any(cells["eps GDP-CLT"] not in ("none", "-") for cells in rows):
        remarks.insert(0, f"eps GDP-CLT is an {APPROXIMATION}")
    for remark in remarks:
        console.print(f"note: {remark}", highlight=False, style="yellow")


def row(path: Path, record: Mapping[str, Any]) -> Row:
    """Return one run as column names and cells; what the run lacks is left out."""
    config, split = record["config"], record["config"]["decode"]["split"]
    cells = {
        "run": path.name,
        "clip": style_in(config["clip"]),
        "steps": f"{record['training']['steps']}",
    }
    scores = record.get("scores", {})
    if split in scores:
        section = scores[split]
        cells["instances"] = str(section["examples"])
        for metric, value in section["metrics"].items():
            cells[metric] = figure(metric, value, section.get("signature"))
            if (constant := section.get("baselines", {}).get(metric)) is not None:
                cells[f"{metric} of one class"] = f"{constant:.4f}"
    epsilon = Guarantee.of_record(record).epsilon
    for column, key in _EPSILONS.items():
        value = (epsilon or {}).get(key)
        # Bounds are rounded up; that of PRV is its upper one, since its estimate promises nothing.
        value = value["upper"] if isinstance(value, Mapping) else value
        if epsilon is None or value is None:
            cells[column] = "none" if epsilon is None else "-"
        elif value >= _LARGE:
            cells[column] = f"{value:.2e}"
        else:
            cells[column] = f"{value:.3f}" if key == "gdp_clt" else up(value)
    if "audit" in record:
        cells["eps at least (audit)"] = down(record["audit"]["epsilon_lower"])
    if "canaries" in scores:
        value = scores["canaries"]["metrics"]["exposure"]
        cells["exposure, bits"] = "-" if value is None else f"{value:.2f}"
    cells["seconds"] = f"{record['training']['seconds']:.0f}"
    return cells


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table of all columns that any row has."""
    columns = _columns(rows)
    return markdown_table(columns, ([cells.get(name, "-") for name in columns] for cells in rows))


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return all columns, but that of PLD only if some run has a number there."""
    columns = dict.fromkeys(name for cells in rows for name in cells)
    if all(cells["eps PLD"] in ("-", "none") for cells in rows):
        del columns["eps PLD"]
    return list(columns)


def print_remarks(path: Path, record: Mapping[str, Any]) -> None:
    """Print what precedes or limits a run's figures: its labels, and its guarantee with caveats."""
    listed = ", ".join(sentences(record.get("flags")))
    Console().print(Text.assemble((str(path), "bold"), f"  ({listed})" if listed else ""))
    for split, scored in (record.get("scores") or {}).items():
        if found := recalls(scored):
            Console().print(f"  {split} recall: {found}", highlight=False, markup=False)
    print_guarantee(record, "  ")


def print_guarantee(record: Mapping[str, Any], indent: str = "") -> None:
    """Print a run's guarantee with its warnings and caveats."""
    console, guarantee = Console(), Guarantee.of_record(record)
    style = None if guarantee.private else "yellow"
    console.print(f"{indent}{guarantee.statement}", highlight=False, style=style)
    seen = [SEEN] if may_be_seen(record) else []
    for note in (*guarantee.notes, *seen, *cautions_of(record)):
        console.print(f"{indent}note: {note}", highlight=False, style="yellow")
