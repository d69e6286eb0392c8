"""``dpft claims``: the papers' headline claims, by their printed numbers and by ours."""

from __future__ import annotations

from typing import Annotated

import typer

from dpft.cli.options import Benches, OutFile, Records
from dpft.cli.output import chosen_format, warn_left_out, write_or_print
from dpft.report.terminal import echo
from dpft.reproduce.claims import load

_SUFFIXES = {".txt": "terminal", ".md": "markdown", ".json": "json"}


def main(
    name: Annotated[
        str | None, typer.Argument(help="A paper, such as li2022, or a claim, such as li2022/c05.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="terminal, markdown or json.")
    ] = None,
    out: OutFile = None,
    runs: Records = None,
    benches: Benches = None,
) -> None:
    """The papers' headline claims: do they hold? By print and by your runs: dpft claims li2022

    Holds, fails, mixed, too close to tell, not yet testable (and by which command), or cannot be
    tested here. With a claim's name: every number. docs/how-to/claims.md says what counts.
    """
    form = chosen_format(form, out, _SUFFIXES)
    claims = load(name)
    from dpft.reproduce.bench.documents import read_benches
    from dpft.reproduce.claims.cells import Evidence
    from dpft.reproduce.claims.evaluate import evaluate
    from dpft.reproduce.claims.report import as_json, as_markdown, as_text, page_of, show
    from dpft.reproduce.tables.record_index import make_index

    index = make_index(runs or None)
    files, damaged = read_benches(benches or None)
    evidence = Evidence(index, files)
    results = [evaluate(claim, evidence) for claim in claims]
    page = page_of(results, one=name is not None and "/" in name)
    render = {
        "terminal": lambda: as_text(page),
        "markdown": lambda: as_markdown(page),
        "json": lambda: as_json(results),
    }
    write_or_print(out, form, render[form], lambda console: show(page, console))
    echo(index.looked, err=True)
    warn_left_out((*index.damaged, *damaged))
