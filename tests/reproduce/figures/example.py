"""Parts of figures, planned once, with records and benchmarks written by hand."""

import functools
import json

from dpft.reproduce.figures.materials import Materials, Part
from dpft.reproduce.figures.registry import load
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import make_index
from dpft.reproduce.tables.plan import make_plan


@functools.cache
def plans(name, scale="laptop"):
    """(table, plan) of each of a figure's parts."""
    tables = [part.load() for part in load(name).parts]
    with Composer() as composer:
        return tuple(
            (table, make_plan(table, composer, scale) if scale == "paper" or table.laptop else None)
            for table in tables
        )


def at_hand(name, folder, scale="laptop", **more):
    index = make_index([folder])
    parts = tuple(
        Part(table, plan, index, part.own)
        for part, (table, plan) in zip(load(name).parts, plans(name, scale), strict=True)
    )
    return Materials(scale, parts, **more)


def planned(name, part=0, scale="laptop", column=None, **labels):
    """The run of the row with these labels."""
    _, plan = plans(name, scale)[part]
    (found,) = {
        plan.runs[i, j]
        for i, row in enumerate(plan.rows)
        for j, one in enumerate(plan.columns)
        if (i, j) in plan.runs
        and all(row.labels[key] == value for key, value in labels.items())
        and column in (None, one.key)
    }
    return found


def write_bench(path, model, styles, *, largest=None, hardware="GPU X", batch=4):
    """As much of a benchmark's file as figures read; ``styles``: label to (time, memory) ratio."""

    def spread(x):
        return {"median": x, "min": x, "max": x}

    document = {
        "labels": [model, f"B={batch}", hardware, "torch 2"],
        "settings": {"model": model, "batch": batch},
    }
    if largest is None:
        document["summary"] = [
            {
                "label": label,
                "time_ratio": spread(time),
                "memory_ratio": spread(memory),
                "seconds": spread(2.0 * time),
                "peak_bytes": spread(1e9 * memory),
            }
            for label, (time, memory) in styles.items()
        ]
    else:
        document["largest_batch"] = [
            {"label": label, "batch": size, "examples_per_second": speed, "message": None}
            for label, (size, speed) in largest.items()
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
