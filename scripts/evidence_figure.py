"""What the committed runs say of each claim: the first table of results/README.md, and pictures.

``python scripts/evidence_figure.py`` reads the records below ``results/``, evaluates the claims
that runs on a laptop decide (`scripts/evidence.py`), writes the table between the two marker lines
of ``results/README.md``, and one picture a claim that has numbers, and a study that compares any,
into ``results/figures/evidence/``. Equal records give equal files. Nothing is trained.
"""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))
import evidence
import evidence_studies

from dpft.report import markdown
from dpft.reproduce import claims
from dpft.reproduce.claims import Claim
from dpft.reproduce.claims.cells import Evidence
from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.evaluate import Result, evaluate
from dpft.reproduce.claims.report import counted
from dpft.reproduce.claims.schema import CellsCheck
from dpft.reproduce.tables.record_index import Index, make_index
from dpft.reproduce.tables.text_table import shown_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "results/figures/evidence"
BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"
OF_RUNS = (Side.PAPER, Side.STAND_IN, Side.LAPTOP)
COLOURS = {Outcome.HOLDS: "#009E73", Outcome.FAILS: "#D55E00"}
UNDECIDED = "0.45"
DPI = 100


def results(index: Index) -> list[Result]:
    """Of the claims that runs on a laptop decide, in the order of the papers."""
    known = Evidence(index, [])
    return [evaluate(claim, known) for claim in claims.load() if evidence.needs(claim)]


def of_runs(result: Result) -> list[Comparison]:
    """The comparisons of runs of ours that have numbers."""
    return [one for one in result.ours if one.known and one.side in OF_RUNS]


def records_of(compared: Sequence[Comparison], index: Index) -> list[Mapping[str, Any]]:
    """The records behind comparisons, each once."""
    known = {shown_path(one.path): one.record for group in index.records.values() for one in group}
    return [known[path] for path in dict.fromkeys(path for one in compared for path in one.runs)]


def hours(records: Sequence[Mapping[str, Any]]) -> float:
    """Core hours of training, as recorded: on a shared machine they are too many."""
    seconds = (
        record["training"]["seconds"] * (record["environment"]["threads"] or 1)
        for record in records
    )
    return float(sum(seconds)) / 3600


def models(records: Sequence[Mapping[str, Any]]) -> str:
    """Names of the models that ran."""
    return ", ".join(dict.fromkeys(record["config"]["model"]["name"] for record in records)) or "-"


def table(listed: Sequence[Result], index: Index) -> str:
    """Markdown: a line for each claim."""
    heads = ("claim", "verdict", "its first comparison", "seeds", "models", "runs", "core hours")
    rows = []
    for result in listed:
        compared = of_runs(result)
        records = records_of(compared, index)
        first = f"{compared[0].what}: {compared[0].text}" if compared else "-"
        seeds = min(map(seeds_of, compared), default=0)
        spent = f"{hours(records):.1f}" if records else "-"
        verdict = counted(result.by_us, result.reasons)
        name = named(result.claim)
        rows.append((name, verdict, first, seeds, models(records), len(records), spent))
    return markdown.table(heads, rows)


def named(claim: Claim) -> str:
    """``li2022/c10``, what it says, and what of that runs of stand-ins are not asked."""
    compared = [check for check in claim.checks if isinstance(check, CellsCheck)]
    ranged = any(check.expected.kind == "apart" for check in compared)
    only_order = ranged and any(check.scales == ("laptop",) for check in compared)
    less = " (How many points is asked of the paper's models alone, here which is better.)"
    return f"`{claim.name}` {claim.says}{less if only_order else ''}"


def seeds_of(one: Comparison) -> int:
    """How many seeds both settings have; without two in common it is one of each."""
    return one.paired.seeds if one.paired is not None else 1


def opening(listed: Sequence[Result]) -> str:
    """Markdown: how many claims have which verdict, and a sentence and a picture for each known."""
    count = Counter(str(one.by_us.verdict) for one in listed)
    said = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
    parts = [f"Of {len(listed)} claims that runs on a laptop can decide: {said}.{together(listed)}"]
    for result in listed:
        if compared := of_runs(result):
            verdict = counted(result.by_us, result.reasons)
            picture = f"figures/evidence/{picture_of(result.claim)}"
            said = f"**{verdict[0].upper()}{verdict[1:]}.** {behind(compared)}."
            parts.append(f"{named(result.claim)} {said}")
            parts.append(f"![The claim's comparisons, with their intervals]({picture})")
    for study in studies():
        page, picture = f"evidence/{study.folder}", f"figures/evidence/{study.folder}.png"
        said = evidence_studies.verdict(study, evidence_studies.RESULTS / study.folder)
        compared = f"**{said}.** {behind(compared_in(study))}."
        parts.append(f"Study [{study.name}]({page}/README.md): {study.question} {compared}")
        parts.append(f"![The study's first row beside each other one]({picture})")
    return "\n\n".join(parts)


def behind(compared: Sequence[Comparison]) -> str:
    """How many runs are behind comparisons, and of how many seeds at least."""
    count = len({path for one in compared for path in one.runs})
    seeds = min(map(seeds_of, compared))
    return f"{count} runs, {seeds} seed{'s' * (seeds != 1)} of each setting"


def together(listed: Sequence[Result]) -> str:
    """Which claims are decided by the same runs, in a sentence; empty where none are."""
    by_runs: dict[frozenset[str], list[str]] = {}
    for result in listed:
        if paths := frozenset(path for one in of_runs(result) for path in one.runs):
            by_runs.setdefault(paths, []).append(f"`{result.claim.name}`")
    same = [" and ".join(names) for names in by_runs.values() if len(names) > 1]
    return (
        f" Decided by the very same runs, and so no independent findings: {'; '.join(same)}."
        if same
        else ""
    )


def studies() -> list[evidence_studies.Study]:
    """Those whose committed runs compare something."""
    return [s for s in evidence_studies.STUDIES if compared_in(s)]


def compared_in(study: evidence_studies.Study) -> list[Comparison]:
    """What a study compares, by its committed runs."""
    return evidence_studies.compared(study, evidence_studies.RESULTS / study.folder)


def picture_of(claim: Claim) -> str:
    """The file of a claim's picture."""
    return f"{claim.name.replace('/', '-')}.png"


def written(text: str, listed: Sequence[Result], index: Index) -> str:
    """The page with verdicts, pictures and the table in their place."""
    before, rest = text.split(BEGIN)
    made = f"{opening(listed)}\n\n{table(listed, index)}"
    return f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES)
    write(parser.parse_args().out)


def write(folder: Path = PICTURES) -> None:
    """The page, and pictures into a folder."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from dpft.reproduce.figures.draw import RC

    index = committed()
    listed = results(index)
    page = ROOT / "results" / "README.md"
    page.write_text(written(page.read_text(encoding="utf-8"), listed, index), encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    shown = {
        picture_of(result.claim): (title(result, records_of(compared, index)), compared, "")
        for result in listed
        if (compared := of_runs(result))
    }
    for study in studies():
        compared = compared_in(study)
        ran = f"laptop scale: {models(records_of(compared, index))}"
        about = f"Study {study.name}: {study.question}\n{study.column.label}, {ran}"
        shown[f"{study.folder}.png"] = (about, compared, study.column.label)
    for file, (about, compared, unit) in shown.items():
        with matplotlib.rc_context(RC):
            figure = Figure(figsize=(8.2, 1.8 + 0.24 * len(compared)), layout="constrained")
            figure.suptitle(about, x=0.01, ha="left")
            draw(figure.subplots(), compared, unit)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": "dpft"})
        (folder / file).write_bytes(buffer.getvalue())
        shrink(folder / file)


def shrink(file: Path) -> None:
    """Keep 128 colours of a picture: a third of its bytes, and it looks the same."""
    from PIL import Image

    with Image.open(file) as picture:
        colours = picture.convert("RGB")
    # By coverage: a thin line keeps its colour beside a heat map of many.
    few = colours.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def committed() -> Index:
    """The records below results/."""
    return make_index([ROOT / "results"])


def draw(axes: Axes, compared: Sequence[Comparison], unit: str) -> None:
    """Differences one below the other: of one score in its unit, else in % of the second number."""
    for place, one in enumerate(compared):
        second = abs(one.numbers.get("second", one.numbers["first"]))
        scale = 1.0 if unit else 100 / (second or 1.0)
        ahead, margin = one.numbers["ahead"] * scale, one.numbers.get("margin", 0.0) * scale
        colour = COLOURS.get(one.outcome, UNDECIDED)
        if margin:
            axes.barh(place, 2 * margin, left=-margin, height=0.7, color="0.9", zorder=1)
        if one.paired is None:
            axes.plot(ahead, place, "o", color=colour, markerfacecolor="white", zorder=3)
        else:
            reach = [[ahead - one.paired.low * scale], [one.paired.high * scale - ahead]]
            axes.errorbar(ahead, place, xerr=reach, fmt="o", color=colour, capsize=2, zorder=3)
    axes.axvline(0, color="0.3", linewidth=1, zorder=2)
    axes.set_yticks(range(len(compared)), [one.what for one in compared], fontsize=7)
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(
        f"difference in {unit or 'per cent of the second number'}; right: the first is better.\n"
        "Green holds, red fails, grey is open. Filled: mean over seeds with its 95% interval;\n"
        "hollow: no two seeds in common; shaded: differences that do not count (margin)",
        fontsize=7,
    )


def title(result: Result, records: Sequence[Mapping[str, Any]]) -> str:
    """The claim, its verdict, and the models that ran, whose places the rows name."""
    says = textwrap.fill(f"{result.claim.name}: {result.claim.says}", 105)
    verdict = counted(result.by_us, result.reasons)
    return f"{says}\n{verdict}\nlaptop scale: {models(records)} in the paper's rows"


if __name__ == "__main__":
    main()
