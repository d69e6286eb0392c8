"""The fixture table, its plans, and records written by hand."""

import functools
import json
from pathlib import Path

from dpft.papers import read
from dpft.tables.composition import Composer
from dpft.tables.plan import make_plan

PAPERS = Path(__file__).parent / "papers"


@functools.cache
def table():
    return read(PAPERS / "demo" / "1.yaml")


@functools.cache
def plan(scale="paper", seeds=None, extra=()):
    with Composer() as composer:
        return make_plan(table(), composer, scale, seeds, extra)


def run_of(the_plan, method, epsilon=3, column="bleu"):
    (i,) = [
        i
        for i, row in enumerate(the_plan.rows)
        if row.labels == {"method": method, "epsilon": epsilon}
    ]
    (j,) = [j for j, one in enumerate(the_plan.columns) if one.key == column]
    return the_plan.runs[i, j]


def write_record(folder, planned, seed=0, metrics=None, split="test", **sections):
    """As little of a record as tables read; a path in ``sections["config"]`` replaces settings."""
    config = json.loads(json.dumps(planned.run.identity())) | {"seed": seed}
    for key, value in sections.pop("settings", {}).items():
        group, _, leaf = key.partition(".")
        config.setdefault(group, {})[leaf] = value
    record = {
        "schema_version": 1,
        "config": config,
        "config_hash": planned.config_hash(seed),
        "labels": [],
        "model": {"base_model": config["model"]["path"]},
        "scores": {split: {"metrics": metrics or {"BLEU": 0.6}, "examples": 630, "signature": "x"}},
        **sections,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps(record))
    return folder
