"""``dpft claims``: the papers' headline claims, by their printed numbers and by ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpft.cli.formats import chosen_format
from dpft.cli.printing import make_console, tell_left_out, write_out
from dpft.report.terminal import echo
from dpft.reproduce.claims import load

_SUFFIXES = {".txt": "terminal", ".md": "markdown", ".json": "json"}


def main(
    name: str | None,
    *,
    form: str | None = None,
    out: Path | None = None,
    runs: Sequence[Path] = (),
    benches: Sequence[Path] = (),
) -> None:
    """Show all claims, a paper's, or one with every number.

    Args:
        name: ``li2022`` or ``li2022/c05``; None: all.
        form: one of the formats; None: by the suffix of ``out``, else the terminal's.
        out: file to write to.
        runs: where records are looked for; none: ``runs`` and ``results``.
        benches: where benchmarks are; none: ``runs/bench`` and ``results/bench``.

    Raises:
        ConfigError: for a claim, format or folder that is not there.
    """
    form = chosen_format(form, out, _SUFFIXES)
    claims = load(name)
    from dpft.reproduce.bench.documents import read_benches
    from dpft.reproduce.claims.cells import Evidence
    from dpft.reproduce.claims.evaluate import evaluate
    from dpft.reproduce.claims.report import as_json, as_markdown, as_text, page_of, show
    from dpft.reproduce.tables.composition import Composer
    from dpft.reproduce.tables.found import make_index

    index = make_index(runs or None)
    files, damaged = read_benches(benches or None)
    with Composer() as composer:
        evidence = Evidence(index, files, composer)
        results = [evaluate(claim, evidence) for claim in claims]
    page = page_of(results, one=name is not None and "/" in name)
    if out is None and form == "terminal":
        show(page, make_console())
    else:
        as_form = as_text if form == "terminal" else as_markdown
        text = as_json(results) if form == "json" else as_form(page)
        if out is None:
            echo(text, nl=False)
        else:
            write_out(out, text)
    tell_left_out((*index.damaged, *damaged))
