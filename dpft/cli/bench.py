"""``dpft bench``: time and memory of clipping styles and peers against non-private training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpft.report.console import Console
from dpft.report.terminal import echo
from dpft.reproduce.bench import report
from dpft.reproduce.bench.catalog import require_peers
from dpft.reproduce.bench.largest import largest_batches, require_cuda
from dpft.reproduce.bench.processes import BenchError, Session, code_fingerprint, run_job
from dpft.reproduce.bench.rounds import Journal, Tell, measure, measurement_key
from dpft.reproduce.bench.settings import Settings
from dpft.reproduce.bench.statistics import summarise


def main(explain: bool, largest_batch: bool, threads: int | None, **typed: Any) -> None:
    """Measure, write and show.

    Args:
        explain: only show which form the engine chooses for each layer.
        largest_batch: search for the largest batch instead of timing.
        threads: of each process; None: ``OMP_NUM_THREADS``, or all cores.
        typed: the other options, for `Settings.make`.
    """
    settings = Settings.make(threads=usual_threads() if threads is None else threads, **typed)
    if settings.peers:
        require_peers()
    facts = run_job(settings.job("environment"))
    if facts["status"] != "ok":
        raise BenchError(f"the measurements cannot start: {facts['message']}")
    settings = replace(settings, device=facts["device"])
    if explain:
        _explain(settings)
        return
    journal = Journal(
        settings.out / f"{settings.stem}.jsonl",
        measurement_key(settings, facts, code_fingerprint()),
    )
    path = settings.out / settings.stem
    title = ", ".join(report.labels(settings, facts))
    if largest_batch:
        require_cuda(settings.device)
        _largest(settings, facts, journal, path.with_name(f"{path.name}-largest"), title)
    else:
        _measure(settings, facts, journal, path, title)


def usual_threads() -> int:
    """``OMP_NUM_THREADS`` where it is set, else the cores that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _measure(
    settings: Settings, facts: dict[str, Any], journal: Journal, path: Path, title: str
) -> None:
    from dpft.reproduce.bench.plot import plot

    with _progress() as tell:
        rows = measure(settings, journal, Session, tell)
    summaries = summarise(settings, rows)
    table = [report.cells(summary) for summary in summaries]
    notes = [report.note(settings, rows[0]["load"]), *report.remarks(summaries)]
    _write(path, report.document(settings, facts, rows, summaries), title, table, notes)
    plot(summaries, title, path)
    report.show(title, table, notes)
    echo(f"written: {path}.json, .md, .png, .svg, .jsonl")


def _largest(
    settings: Settings, facts: dict[str, Any], journal: Journal, path: Path, title: str
) -> None:
    from dpft.reproduce.bench.plot import plot_largest

    with _progress() as tell:
        found = largest_batches(settings, journal, run_job, tell)
    batches = {one.label: one.batch for one in found}
    table = [
        report.largest_cells(one, batches[settings.baseline(variant).label])
        for one, variant in zip(found, settings.variants, strict=True)
    ]
    notes = [report.largest_note(), *report.remarks(found)]
    _write(path, report.largest_document(settings, facts, found), title, table, notes)
    plot_largest(found, title, path)
    report.show(title, table, notes)
    echo(f"written: {path}.json, .md, .png, .svg")


def _explain(settings: Settings) -> None:
    """One forward and backward of each style that clips."""
    for variant in settings.variants:
        if not variant.peer and variant != settings.baseline(variant):
            report.show_explained(variant.label, run_job(settings.job("explain", variant)))


def _write(
    path: Path,
    document: dict[str, Any],
    title: str,
    table: list[report.Cells],
    notes: list[str],
) -> None:
    from dpft.runs.atomic import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path.with_name(f"{path.name}.json"), json.dumps(document, indent=1) + "\n")
    page = report.as_markdown(title, table, [*notes, f"`{document['command']}`"])
    write_atomic(path.with_name(f"{path.name}.md"), page)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on standard error; plain lines where that is no terminal."""
    console = Console(stderr=True)
    bars = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        disable=not console.is_terminal,
    )
    bar = bars.add_task("", total=None)

    def tell(done: int, total: int, what: str) -> None:
        bars.update(bar, completed=done, total=total, description=what)
        if not console.is_terminal and done < total:
            console.print(f"{done + 1}/{total} {what}", highlight=False)

    show: Callable[[int, int, str], None] = tell
    with bars:
        yield show
