"""Inputs of figures, planned once, with records and benchmarks written by hand."""

import functools
import json
from dataclasses import replace

from dpft.reproduce.figures.catalog import Inputs, load, plan_tables
from dpft.reproduce.figures.draw import build
from dpft.reproduce.tables.record_index import Index, make_index


@functools.cache
def tables(name, scale="laptop"):
    return plan_tables(load(name), scale, Index())


def content(name, folder=None, scale="laptop", **inputs):
    """The figure, from the records below a folder; None: without tables and records."""
    index = folder and make_index([folder])
    filled = tuple(replace(table, index=index) for table in tables(name, scale)) if folder else ()
    return build(load(name), Inputs(scale, filled, **inputs))


def planned(name, place=0, scale="laptop", **labels):
    """The run of the row with these labels in one of the figure's tables."""
    plan = tables(name, scale)[place].plan
    wanted = {name: (value,) for name, value in labels.items()}
    (run,) = {run for (i, _), run in plan.runs.items() if plan.rows[i].matches(wanted)}
    return run


def write_bench(path, model, styles, batch):
    """As much of a benchmark's file as figures read; ``styles``: label to (time, memory) ratio."""

    def spread(x):
        return {"median": x, "min": x, "max": x}

    settings = {"model": model, "batch": batch, "length": 100, "device": "cuda"}
    summary = [
        {
            **{"label": label, "rounds": 5},
            **{"time_ratio": spread(time), "memory_ratio": spread(memory)},
            **{"seconds": spread(2.0 * time), "peak_bytes": spread(1e9 * memory)},
        }
        for label, (time, memory) in styles.items()
    ]
    document = {"labels": [model, "GPU X"], "settings": settings, "summary": summary}
    path.write_text(json.dumps(document))
