"""Claims on the terminal and as Markdown: a list, or one with all its numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpft.report.console import Console
from dpft.reproduce.claims.evaluate import Result
from dpft.reproduce.claims.shown import (
    FIELDS,
    HEADINGS,
    STYLES,
    facts,
    legend,
    lines,
    open_commands,
    row,
    with_numbers,
)

WIDTH = 140


def show_list(results: Sequence[Result], console: Console) -> None:
    """Every claim in a row, what the words mean, and what would test the rest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
    for name in HEADINGS:
        table.add_column(Text(name), ratio=3 if name == "in short" else None)
    for result in results:
        claim, says, printed, ours, scale = row(result)
        verdict = result.by_print.verdict if result.by_print is not None else None
        cells = [
            Text(claim, no_wrap=True),
            Text(says),
            Text(printed, style="" if verdict is None else STYLES[verdict]),
            Text(ours, style=STYLES[result.by_us.verdict]),
            Text(scale),
        ]
        table.add_row(*cells)
    console.print(table)
    for heading, text in legend(results):
        _note(heading, text, console)
    commands = open_commands(results)
    if commands:
        console.print(Text("What would test those not yet testable:", style="bold"))
    for command, claims in commands.items():
        console.print(Padding(Text(f"{command}  # {', '.join(claims)}"), (0, 0, 0, 1)))


def show_one(result: Result, console: Console) -> None:
    """A claim with every comparison."""
    console.print(Text(f"{result.claim.name}: {result.claim.says}", style="bold"))
    for heading, text in facts(result):
        _note(heading, text, console)
    compared = lines(result)
    if not compared:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in FIELDS:
        table.add_column(Text(name), ratio=3 if name == "compared" else None)
    for cells, one in zip(compared, with_numbers(result), strict=True):
        table.add_row(*map(Text, cells[:-1]), Text(cells[-1], style=STYLES[one.outcome]))
    console.print(table)


def as_text(results: Sequence[Result], *, one: bool) -> str:
    """The same as plain text, `WIDTH` characters wide."""
    stream = io.StringIO()
    console = Console(file=stream, width=WIDTH, color_system=None)
    if one:
        show_one(results[0], console)
    else:
        show_list(results, console)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def as_markdown(results: Sequence[Result], *, one: bool) -> str:
    """The same as Markdown."""
    if one:
        return _one(results[0])
    table = _table(HEADINGS, [row(result) for result in results])
    notes = "\n".join(f"- **{name}:** {_escaped(text)}" for name, text in legend(results))
    commands = "".join(
        f"{command}  # {', '.join(claims)}\n" for command, claims in open_commands(results).items()
    )
    page = f"# Claims\n\n{table}\n\n{notes}\n"
    if commands:
        page += f"\nWhat would test those not yet testable:\n\n```sh\n{commands}```\n"
    return page


def _one(result: Result) -> str:
    head = f"# {result.claim.name}\n\n{_escaped(result.claim.says)}\n"
    notes = "\n".join(f"- **{name}:** {_escaped(text)}" for name, text in facts(result))
    compared = lines(result)
    table = f"\n{_table(FIELDS, compared)}\n" if compared else ""
    return f"{head}\n{notes}\n{table}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    told = [headings, ["---"] * len(headings), *([*map(_escaped, one)] for one in rows)]
    return "\n".join(f"| {' | '.join(one)} |" for one in told)


def _note(heading: str, text: str, console: Console) -> None:
    line = Text.assemble((f"{heading}: ", "bold"), text)
    console.print(Padding(line, (0, 0, 0, 1)), highlight=False)


def _escaped(text: str) -> str:
    return re.sub(r"([\\|*_<>`~\[\]])", r"\\\1", text)
