"""Copy the finished runs of the queue (scripts/evidence.py) into results/, and renew its pages.

    python scripts/collect_evidence.py RUNS      # the folder runs/ that the queue wrote

Copied are the runs that a claim compares and that no folder of results/ has yet, into
``results/evidence/PAPER-TABLE/``, and the runs of the studies into
``results/evidence/study-NAME/``: records, and summaries of ledgers. Each folder has a page that
names models, data, seeds and hardware, all from its records. Then verdicts and pictures of
results/README.md are made again (`scripts/evidence_figure.py`). What was copied is not copied
again, so that this may be typed after every day of runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import collect_results
import evidence
import evidence_figure
import evidence_studies
from collect_table import short_names

from dpft import runs
from dpft.cli.score import score_run
from dpft.config.errors import ConfigError
from dpft.reproduce import claims
from dpft.reproduce.tables.cells import chosen
from dpft.reproduce.tables.record_index import make_index
from dpft.runs.run_index import runs_below

ROOT = Path(__file__).resolve().parents[1]
OUT = "evidence"
LONGEST = 100  # characters of a run's name
STUDY = "The ladder's rungs and MiniLM stand in for the papers' models."
NORMS = ("he2022/2", "he2022/4", "li2022/3b")  # figures of what a run keeps under private/
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Folder:
    """Runs that lie together.

    Attributes:
        title: of its page.
        says: what stands in for what.
        asked: what `scripts/evidence.py` is asked for, to make the runs again.
        runs: settings by name, without the seed; empty for a study.
        study: that its runs are of.
    """

    title: str
    says: str
    asked: tuple[str, ...]
    runs: Mapping[str, evidence.Need]
    study: evidence_studies.Study | None = None


def folders() -> dict[str, Folder]:
    """The runs that claims compare, each in the folder of the table that wanted it first.

    Folders of studies have no runs here: those are known by their names.
    """
    by_source: dict[str, dict[str, evidence.Need]] = {}
    asked: dict[str, list[str]] = {}
    for claim in claims.load():
        for need in evidence.needs(claim):
            asked.setdefault(need.source, []).append(claim.name)
            by_source.setdefault(need.source, {}).setdefault(need.planned.key, need)
    found = {}
    seen: set[str] = set()
    for source, own in by_source.items():
        table = next(iter(own.values())).plan.table
        # Names are of all runs of a source, so that none changes with what another one has.
        names = [_tail(name) for name in short_names([need.planned.words for need in own.values()])]
        found[folder_name(source)] = Folder(
            f"{table.title} ({table.source}), at a laptop's scale",
            table.laptop.says if table.laptop else "",
            tuple(dict.fromkeys(asked[source])),
            {n: need for n, (key, need) in zip(names, own.items(), strict=True) if key not in seen},
        )
        seen |= own.keys()
    for study in evidence_studies.STUDIES:
        title = f"Study {study.name}, letter {study.finding} of the queue: {study.question}"
        found[study.folder] = Folder(title, STUDY, (study.finding,), {}, study)
    return found


def _tail(name: str) -> str:
    """The last settings of a long name, which tell most."""
    return name if len(name) <= LONGEST else name[-LONGEST:].partition("-")[2]


def folder_name(source: str) -> str:
    """``table li2022/7`` is li2022-7, ``figure li2022/1`` li2022-figure-1."""
    kind, name = source.split()
    return name.replace("/", "-figure-" if kind == "figure" else "-")


def collect(source: Path, results: Path, known: Mapping[str, Folder]) -> list[Path]:
    """Copy what ``results`` lacks of the runs in ``known``; where the copies lie."""
    index = make_index([results, source])
    copied = []
    for name, folder in known.items():
        for label, need in folder.runs.items():
            plan = replace(need.plan, seeds=evidence.SEEDS)
            for seed, found in chosen(need.planned, plan, index, need.column).items():
                if results not in found.path.parents:
                    copied.append(copy(found.path, results / OUT / name / f"{label}-s{seed}"))
    for study in evidence_studies.STUDIES:
        finals = evidence_studies.finals(study, dict.fromkeys(study.rows, ""))
        for name in [*evidence_studies.pilots(study), *finals]:
            run, target = source / name, results / OUT / study.folder / name
            if (run / "DONE").is_file() and not target.is_dir():
                copied.append(copy(run, target))
    return copied


def copy(run: Path, target: Path) -> Path:
    """One run.

    Raises:
        SystemExit: if another run lies there.
    """
    new = runs.read_record(run)["config_hash"]
    if (target / "record.json").is_file():
        old = runs.read_record(target)["config_hash"]
        if old != new:
            sys.exit(f"{target} holds run {old}; expected {new}, or none: move it elsewhere")
    with_answers(run)
    collect_results.copy(run, target)
    return target


def with_answers(run: Path) -> None:
    """Score a run of an older dpft again, whose record does not say which answers were right."""
    if not (run / "generations").is_dir():
        return
    for section in runs.read_record(run)["scores"].values():
        published = "accuracy" in section["metrics"] and "references" in section
        if published and "correct" not in section:
            score_run(run)
            return


def pages(results: Path, known: Mapping[str, Folder]) -> None:
    """The page of each folder, and of all of them."""
    lines = []
    (results / OUT).mkdir(exist_ok=True)
    for path in sorted(path for path in (results / OUT).iterdir() if path.is_dir()):
        records = [runs.read_record(run) for run in runs_below(path)]
        folder = known[path.name]
        table = collect_results.render(path)
        said = evidence_studies.table(folder.study, path) if folder.study else ""
        text = page(folder, records, table, said)
        (path / "README.md").write_text(text, encoding="utf-8")
        lines.append(f"| [{path.name}]({path.name}/README.md) | {folder.title} | {len(records)} |")
    text = "\n".join([*INDEX, *lines, ""])
    (results / OUT / "README.md").write_text(text, encoding="utf-8")


INDEX = (
    "# Runs of the queue",
    "",
    "Runs that claims compare, by the table or figure whose rows they are, from "
    "[the queue](../../docs/explanation/evidence.md). `python scripts/collect_evidence.py RUNS` "
    "copies them and writes these pages. What they say stands in [Results](../README.md).",
    "",
    "| folder | of | runs |",
    "| --- | --- | --- |",
)


def page(folder: Folder, records: Sequence[Record], table: str, said: str = "") -> str:
    """Markdown: what ran, on what, where, the table of the records, and what a study says."""
    facts = {
        "Models": distinct(map(model, records)),
        "Data": distinct(map(data, records)),
        "Seeds": distinct(str(r["config"]["seed"]) for r in records),
        "Labels of the records": distinct(label for r in records for label in r.get("labels", [])),
        "Hardware": distinct(map(machine, records)) + "; `seconds` is training time, on machines "
        "that other work may have shared",
        "Code": distinct(map(code, records)),
    }
    return "\n".join(
        [
            f"# {folder.title}",
            "",
            f"**Not the paper's setting.** {folder.says} This page is made from the records beside "
            "it; private runs have their ledger in three lines. Runs that an earlier folder of "
            "results/ has are not here again.",
            "",
            *((said,) if said else ()),
            collect_results.BEGIN,
            table,
            collect_results.END,
            "",
            *(f"- {name}: {text}." for name, text in facts.items() if text),
            "",
            "```sh",
            f"DPFT_DATA=FOLDER python scripts/evidence.py {' '.join(folder.asked)}",
            "```",
            "",
        ]
    )


def distinct(texts: Iterable[str]) -> str:
    """Each once, in order."""
    return ", ".join(sorted(dict.fromkeys(texts)))


def model(record: Record) -> str:
    """Its name, where it lies, its size, and the digest of its weights if that was recorded."""
    name, path = record["config"]["model"]["name"], record["config"]["model"]["path"]
    begun = record["model"].get("weights_sha256")
    which = f", weights {begun[:8]}" if begun else ""
    return f"`{name}` (`{path}`, {record['model']['parameters']:,} parameters{which})"


def data(record: Record) -> str:
    """The task, what was trained on and what was scored."""
    split = record["config"]["decode"]["split"]
    whole = record["config"]["task"]["train_size"]
    count, scored = record["dataset"]["counts"]["train"], record["scores"][split]["examples"]
    of = f" of {whole:,}" if count != whole else ""
    name = record["config"]["task"]["name"]
    return f"{name} ({count:,}{of} training records, {scored:,} of {split} scored)"


def machine(record: Record) -> str:
    """Processor and threads."""
    about = record["environment"]
    threads = about["threads"]
    return f"{threads} thread{'s' * (threads != 1)} of {about['gpu'] or about['cpu']}"


def code(record: Record) -> str:
    """The commit."""
    commit = str(record["dpft"]["commit"])[:7]
    return f"`{commit}`{' with changes' if record['dpft']['dirty'] else ''}"


def draw(source: Path, results: Path) -> list[str]:
    """The papers' figures that have numbers of ours at a laptop's scale, into results/figures.

    Those of norms are drawn from the runs themselves, which keep them: their tasks are public. Only
    the picture is kept of them.
    """
    from dpft.reproduce.figures import catalog
    from dpft.reproduce.figures.build import build
    from dpft.reproduce.figures.draw import save
    from dpft.reproduce.figures.inputs import Inputs, plan_tables

    committed, kept = make_index([results]), make_index([source])
    drawn = []
    for about in catalog.figures().values():
        of_norms = about.name in NORMS
        if about.kind is not catalog.FigureKind.RUNS and not of_norms:
            continue
        try:
            tables = plan_tables(about, "laptop", kept if of_norms else committed)
            if not any(score.cell.ours is not None for one in tables for score in one.scores):
                continue
            content = build(about, Inputs("laptop", tables))
        except ConfigError:  # there is no such scale, or no run kept its norms
            continue
        png, svg, csv = save(about, content, results / "figures")
        svg.unlink()
        evidence_figure.shrink(png)
        if of_norms:
            csv.unlink()
            png.chmod(0o644)
        drawn.append(about.name)
    return drawn


def main(source: Path) -> None:
    """Copy, then write all pages."""
    results = ROOT / "results"
    known = folders()
    copied = collect(source, results, known)
    print("\n".join(str(path.relative_to(ROOT)) for path in copied))
    pages(results, known)
    evidence_figure.write()
    print("figures:", ", ".join(draw(source, results)))
    size = sum(file.stat().st_size for file in results.rglob("*") if file.is_file())
    print(f"{len(copied)} runs copied; results/ has {size / 1e6:.1f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
