"""``dpft claims``: the papers' headline claims, by their printed numbers and by ours."""

from typing import Annotated

import typer

from dpft.cli.options import Benches, Records
from dpft.cli.output import make_console, warn_left_out
from dpft.report.terminal import echo
from dpft.reproduce.claims.claim import load


def main(
    name: Annotated[
        str | None, typer.Argument(help="A paper, such as li2022, or a claim, such as li2022/c05.")
    ] = None,
    runs: Records = None,
    benches: Benches = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Only how many claims have which word.")
    ] = False,
) -> None:
    """The papers' headline claims: do they hold? By print and by your runs: dpft claims li2022

    Five paired seeds confirm or contradict a claim, three show a tendency, one is only consistent
    with it or not. With a claim's name: every number. docs/how-to/tables.md has the rule.
    """
    claims = load(name)
    from dpft.reproduce.bench.documents import read_benches
    from dpft.reproduce.claims import show
    from dpft.reproduce.claims.evaluate import Evidence, evaluate
    from dpft.reproduce.tables.record_index import make_index

    index = make_index(runs or None)
    files, damaged = read_benches(benches or None)
    evidence = Evidence(index, files)
    results = [evaluate(claim, evidence) for claim in claims]
    if summary:
        show.summary_of(results).show(make_console())
    elif name is not None and "/" in name:
        show.table_of(results[0]).show(make_console())
    else:
        show.list_of(results).show(make_console())
    echo(index.looked, err=True)
    warn_left_out((*index.damaged, *damaged))
