"""The fixture table, its plans, and records written by hand."""

import functools
import json
from pathlib import Path

from dpft.reproduce.papers import read
from dpft.reproduce.tables.planned import make_plan
from tests.report.pages.example import record as whole

PAPERS = Path(__file__).parent / "papers"


@functools.cache
def table():
    return read(PAPERS / "demo" / "1.yaml")


@functools.cache
def plan(scale="paper", seeds=None, extra=()):
    return make_plan(table(), scale, seeds, extra)


def run_of(the_plan, method, epsilon=3, column="bleu"):
    (i,) = [
        i
        for i, row in enumerate(the_plan.rows)
        if row.labels == {"method": method, "epsilon": epsilon}
    ]
    (j,) = [j for j, one in enumerate(the_plan.columns) if one.key == column]
    return the_plan.runs[i, j]


def write_record(folder, planned, seed=0, metrics=None, split="test", **sections):
    """A record of that run, with scores; a path in ``sections["config"]`` replaces settings."""
    config = json.loads(json.dumps(planned.run.recorded())) | {"seed": seed}
    for key, value in sections.pop("settings", {}).items():
        group, _, leaf = key.partition(".")
        config.setdefault(group, {})[leaf] = value
    base = whole(private=False)
    for name, part in sections.items():
        usual = base.get(name)
        base[name] = {**usual, **part} if isinstance(usual, dict) and name != "scores" else part
    for name, part in base.get("scores", {}).items():
        if isinstance(part, dict):
            base["scores"][name] = {"examples": 630, "signature": "x", **part}
    scores = {split: {"metrics": metrics or {"BLEU": 0.6}, "examples": 630, "signature": "x"}}
    record = {
        **base,
        "config": config,
        "config_hash": sections.get("config_hash", planned.config_hash(seed)),
        "flags": sections.get("flags", []),
        "model": {"base_model": config["model"]["path"], **sections.get("model", {})},
        "scores": base["scores"] if "scores" in sections else scores,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps(record))
    return folder
