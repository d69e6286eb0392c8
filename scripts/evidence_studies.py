"""Studies of docs/explanation/evidence.md: rows of settings that no table of the papers has.

Where rates are to be chosen, each row is first run once at every rate, with seed 0 and scored on
dev; then each row with its best rate, once a seed, scored as the task says. Their runs lie in
runs/ until `collect_evidence.py` copies them, the chosen rates in runs/rates.json. What a study
says are differences of its first row and each other one, over the seeds that both have.
`scripts/evidence.py` makes the runs.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from dpft import runs
from dpft.report import markdown
from dpft.reproduce.claims.comparison import Comparison, Outcome, Score, Side, contrast
from dpft.reproduce.claims.schema import Expected
from dpft.reproduce.papers import Column
from dpft.reproduce.tables.record_index import IndexedRun
from dpft.reproduce.tables.text_table import shown_path
from dpft.runs.lineage import begun_with

RUNS = Path("runs")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "evidence"
# Rates are chosen with a seed that no run has which counts.
PILOT_SEED = 0
STUDY_SEEDS = (1, 2, 3)


def _column(label: str, metric: str, split: str, decimals: int) -> Column:
    return Column(
        key="score", label=label, decimals=decimals, metrics=(metric,), higher_is_better=True,
        split=split, factor=100.0,
    )  # fmt: skip


# The score that a study is about, by task.
SCORES = {
    "e2e": _column("BLEU", "BLEU", "test", 2),
    "sst2": _column("SST-2 accuracy", "accuracy", "dev", 1),
}


@dataclass(frozen=True)
class Study:
    """Runs that answer one question together.

    Attributes:
        finding: its letter in docs/explanation/evidence.md.
        name: begins the names of its runs.
        question: in a sentence.
        settings: of every run.
        rows: further settings, by the name of what is compared; all others with the first.
        rates: tried for each row whose settings name none; none: what the settings say.
        further: rates tried for rows whose best was the least or the largest of these.
        pilot: settings of the trials alone, such as fewer epochs.
    """

    finding: str
    name: str
    question: str
    settings: str
    rows: Mapping[str, str] = field(default_factory=lambda: {"": ""})
    rates: tuple[str, ...] = ()
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pilot: str = ""
    seeds: tuple[int, ...] = STUDY_SEEDS

    @property
    def folder(self) -> str:
        """Below results/evidence."""
        return f"study-{self.name}"

    @property
    def column(self) -> Column:
        """The score that it is about."""
        return SCORES[self.settings.split()[0].removeprefix("task=")]


def rung(name: str) -> str:
    """A model of the ladder. The path is relative, so that records name no folder of a machine."""
    return f"model=custom model.name=gpt2-{name} model.path=ladder/{name}"


# Small microbatches: its vocabulary has 49,152 tokens, and logits are the largest thing it holds.
SMOLLM2 = "model=smollm2-135m optim.microbatch_tokens=512"
E2E = "task=e2e clip=bk clip.threshold=0.1 eps=3"
# The settings of Li et al. 2022, Table 1, at a laptop's scale.
INFILL = (
    "task=sst2 task.limit_train=10000 task.max_length=256 model=custom model.name=minilm-2-masked "
    "model.path=ladder/minilm-2-masked adapt=full optim.lr=3e-3 optim.schedule=linear "
    "optim.batch_size=500 optim.epochs=2 optim.microbatch_tokens=512 privacy.accountant=rdp "
    "clip=bk eps=8"
)
# Those of He et al. 2022, Table 11b, at a laptop's scale, but on all records and for three epochs.
ALL_OF_SST2 = (
    "task=sst2 task.mode=head model=custom model.name=minilm-2 model.path=ladder/minilm-2 "
    "model.pooling=mean adapt=lora adapt.rank=4 optim=adam optim.betas=[0.9,0.98] "
    "optim.adam_epsilon=1e-6 optim.lr=3e-3 optim.schedule=linear optim.warmup_ratio=0.06 "
    "optim.batch_size=1024 optim.microbatch_tokens=512 optim.epochs=3 eps=3"
)
ADAPTIVE = "clip.threshold=1 clip.quantile=0.85 clip.quantile_lr=0.3 clip.quantile_budget=0.1"

STUDIES = (
    Study(
        "i", "styles", "does every clipping style and adaptation method train a model?",
        f"{E2E} optim.batch_size=1024 {rung('0.8m')} optim.epochs=1 optim.lr=2e-3", {
            "uniform": "clip=uniform", "two_group": "clip=two_group", "by_type": "clip=by_type",
            "per_device": "clip=per_device", "flat_adaptive": "clip=flat_adaptive",
            "bias": "adapt=bias", "attention": "adapt=attention",
            "linear": "adapt=linear model.tied=false",
        }, seeds=(1,),
    ),
    Study(
        "c", "mean-head", "is it the new head that fails, or the first token?",
        f"{INFILL} task.mode=head model.pooling=mean", seeds=(0, 1, 2),
    ),
    Study(
        "b", "methods-3m", "do full fine-tuning and the larger model win where each has its rate?",
        f"{E2E} task.limit_train=24000 optim.batch_size=512 optim.epochs=2", {
            "full": rung("3m"),
            "smaller rung": rung("0.8m"),
            "lora16": f"{rung('3m')} adapt=lora adapt.rank=16",
            "prefix": f"{rung('3m')} adapt=prefix",
            "rgp8": f"{rung('3m')} adapt=rgp adapt.rank=8",
            "top2": f"{rung('3m')} adapt=top2",
            "retrain": f"{rung('3m')} adapt=scratch",
        }, rates=("optim.lr=1e-3", "optim.lr=4e-3", "optim.lr=1.6e-2"), further={
            "smaller rung": ("optim.lr=2.5e-4",), "lora16": ("optim.lr=6.4e-2",),
            "prefix": ("optim.lr=6.4e-2",), "rgp8": ("optim.lr=2.5e-4",),
        }, pilot="optim.epochs=1",
    ),
    Study(
        "a", "sizes", "does a larger pretrained model do better where few records are at hand?",
        f"{E2E} task.limit_train=4000 optim.batch_size=256 optim.epochs=1", {
            "smollm2": SMOLLM2,
            "smollm2 lora16": f"{SMOLLM2} adapt=lora adapt.rank=16",
            "12m": rung("12m"),
            "3m": rung("3m"),
            "0.8m": rung("0.8m"),
            # What their trials preferred does worse on test: rates decide nothing here.
            "12m at 1e-3": f"{rung('12m')} optim.lr=1e-3",
            "0.8m at 1e-3": f"{rung('0.8m')} optim.lr=1e-3",
        }, rates=("optim.lr=4e-3",), further={
            "smollm2": ("optim.lr=1e-3", "optim.lr=2.5e-4"),
            "smollm2 lora16": ("optim.lr=1.6e-2", "optim.lr=6.4e-2"),
            **dict.fromkeys(("12m", "3m", "0.8m"), ("optim.lr=1e-3", "optim.lr=2.5e-4")),
        }, pilot="optim.epochs=0.5 task.limit_eval=100",
    ),
    Study(
        "e", "all-of-sst2", "is flat clipping ahead of other styles with steps to spare?",
        ALL_OF_SST2, {
            "flat": "clip=bk clip.threshold=0.1",
            "per layer": "clip=per_layer clip.threshold=0.1",
            "automatic per layer": "clip=per_layer clip.threshold=1 clip.clip_function=automatic",
            "adaptive per layer": f"clip=per_layer_adaptive {ADAPTIVE}",
        }, seeds=(0, 1, 2),
    ),
)  # fmt: skip


def label(study: Study, row: str, *more: str) -> str:
    """The name of a run."""
    return "-".join(filter(None, (study.name, row.replace(" ", "-"), *more)))


def trials(study: Study) -> dict[str, dict[str, str]]:
    """For each row, names of its trials by rate."""
    return {
        row: {
            rate: label(study, row, "pilot", rate.split("=")[1])
            for rate in (*study.rates, *study.further.get(row, ()))
            if "optim.lr=" not in settings
        }
        for row, settings in study.rows.items()
    }


def pilots(study: Study) -> dict[str, str]:
    """Settings of all trials, by name."""
    return {
        name: f"{study.settings} {study.rows[row]} {rate} {study.pilot} seed={PILOT_SEED} "
        "decode.split=dev"
        for row, named in trials(study).items()
        for rate, name in named.items()
    }


def best(study: Study) -> dict[str, str]:
    """For each row, the rate of the trial that is best on dev; empty where none was searched."""
    (metric,) = study.column.metrics
    chosen = {}
    for row, named in trials(study).items():
        scores = {
            rate: runs.read_record(home(name) or RUNS / name)["scores"]["dev"]["metrics"][metric]
            for rate, name in named.items()
        }
        chosen[row] = max(scores, key=lambda rate: scores[rate]) if scores else ""
    return chosen


def finals(study: Study, rates: Mapping[str, str]) -> dict[str, str]:
    """Settings of the runs that count, by name."""
    return {
        label(study, row, f"s{seed}"): f"{study.settings} {settings} {rates[row]} seed={seed}"
        for row, settings in study.rows.items()
        for seed in study.seeds
    }


def home(name: str) -> Path | None:
    """Where a run of a study lies that is finished: in runs/, or committed; None if nowhere."""
    if (RUNS / name / "DONE").is_file():
        return RUNS / name
    places = (RESULTS / study.folder / name for study in STUDIES)
    return next((place for place in places if (place / "record.json").is_file()), None)


def sweep(name: str, points: Mapping[str, str]) -> bool:
    """Make the runs that are missing; say whether all are there."""
    RUNS.mkdir(exist_ok=True)
    todo = {n: settings for n, settings in points.items() if home(n) is None}
    if todo:
        file = RUNS / f"{name}.txt"
        lines = [f"{settings} name={n}" for n, settings in todo.items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = ["dpft", "sweep", "--list", str(file)]
        print("==", *command, flush=True)
        subprocess.run(command, check=False)
    return all(map(home, points))


def make(study: Study) -> bool:
    """Trials, choice and runs of a study; say whether all are there."""
    if not sweep(f"{study.name}-pilot", pilots(study)):
        return False
    rates = best(study)
    file = RUNS / "rates.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    known[study.name] = rates
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return sweep(study.name, finals(study, rates))


def scores(study: Study, folder: Path) -> dict[str, Score]:
    """Of the final runs that lie in a folder, by row; rows without runs are left out."""
    found = {}
    for row in study.rows:
        done = {
            seed: IndexedRun(path, runs.read_record(path), seed, "")
            for seed in study.seeds
            if (path := folder / label(study, row, f"s{seed}")).is_dir()
        }
        by_seed = {
            s: value for s, run in done.items() if (value := run.score(study.column)) is not None
        }
        if by_seed:
            found[row] = Score(
                row,
                fmean(by_seed.values()),
                sampling=max(run.sampling_error(study.column) for run in done.values()),
                by_seed=by_seed,
                answers={s: told for s, run in done.items() if (told := run.answers(study.column))},
                begun=frozenset(pair for run in done.values() for pair in begun_with(run.record)),
                runs=tuple(shown_path(run.path) for run in done.values()),
            )
    return found


def compared(study: Study, folder: Path) -> list[Comparison]:
    """The first row with each other one that has runs: whether it is the better one."""
    known = scores(study, folder)
    reference = known.pop(next(iter(study.rows)), None)
    if reference is None:
        return []
    asked = Expected("above")
    return [
        contrast(
            Comparison(Side.LAPTOP, f"{reference.name} against {row}", "", Outcome.LACKING),
            asked, study.column, reference, score,
        )
        for row, score in known.items()
    ]  # fmt: skip


def verdict(study: Study, folder: Path) -> str:
    """In a sentence: the first row's score, and which rows it is ahead of, behind, or neither."""
    known = scores(study, folder)
    said = {Outcome.HOLDS: "ahead of", Outcome.FAILS: "behind"}
    sides: dict[str, list[str]] = {}
    for one in compared(study, folder):
        row = one.what.partition(" against ")[2]
        side = said.get(one.outcome, "not told apart from")
        less = "" if one.paired else ", by a margin, of one seed"
        sides.setdefault(side, []).append(f"{row} ({known[row].text(study.column)}{less})")
    reference = known[next(iter(study.rows))]
    named = "; ".join(f"{side} {', '.join(rows)}" for side, rows in sides.items())
    return f"{reference.name} ({study.column.label} {reference.text(study.column)}): {named}"


def tried(study: Study, row: str, folder: Path) -> str:
    """What a row's trials scored on dev, by rate; - where none lie in the folder."""
    (metric,) = study.column.metrics
    found = []
    for rate, name in trials(study)[row].items():
        if (folder / name).is_dir():
            value = runs.read_record(folder / name)["scores"]["dev"]["metrics"][metric]
            shown = f"{study.column.factor * value:.{study.column.decimals}f}"
            found.append(f"{rate.partition('=')[2]}: {shown}")
    return ", ".join(found) or "-"


def table(study: Study, folder: Path) -> str:
    """Markdown: a line a row, with its trials, its rate, its mean and the first row beside it."""
    column = study.column
    beside = {one.what.partition(" against ")[2]: one.text for one in compared(study, folder)}
    lines = []
    for row, score in scores(study, folder).items():
        values = [*score.by_seed.values()]
        error = f"{stdev(values) / len(values) ** 0.5:.{column.decimals}f}" if values[1:] else "-"
        run = label(study, row, f"s{min(score.by_seed)}")
        rate = f"{runs.read_record(folder / run)['config']['optim']['lr']:g}"
        told = (score.text(column), error, len(values), beside.get(row, "-"))
        lines.append((row, tried(study, row, folder), rate, *told))
    heads = (
        *("row", "trials, by rate", "rate", column.label, "standard error", "seeds"),
        "the first row against this one",
    )
    return markdown.table(heads, lines) + "\n"
