"""How many positions the fixed shapes of half precision compute, beside padding to the longest.

    DPFT_DATA=FOLDER python scripts/padding_cost.py task=e2e [SETTINGS]

Draws logical batches as a run does and counts rows times width of every microbatch, both ways. A
count, not a time: it does not depend on the machine. Time: a minute.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np
import torch

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.privacy.shapes import FixedShapes
from dpft.tasks import load_task
from dpft.tasks.objectives.encoding import encode_all
from dpft.tasks.units import Records
from dpft.training.assembly import assemble
from dpft.training.mechanisms import make_mechanism

STEPS = 20


def positions(data: Records, indices: list[int], budget: int) -> tuple[int, int]:
    """Rows times width over all microbatches, and how many there are."""
    pieces = data.microbatches(indices, budget)
    computed = 0
    for piece in pieces:
        batch = data.batch(piece, 0).batch
        computed += max(t.numel() for t in batch.tensors.values())
    return computed, len(pieces)


def main() -> None:
    """Count, and print a line."""
    run = parse(compose(sys.argv[1:]))
    task = load_task(run.task)
    records = task.records("train")
    parts = assemble(run, task, make_mechanism(run, len(records)), torch.device("cpu"))
    objective = task.objective(parts.loaded)
    examples = list(encode_all(objective, list(records)))
    free = Records(objective, examples)
    fixed = Records(objective, examples, FixedShapes(parts.mechanism.batch_size))
    generator, budget = np.random.default_rng(0), run.optim.token_budget
    ratios, counts = [], []
    for _ in range(STEPS):
        drawn = np.flatnonzero(generator.random(len(examples)) < parts.mechanism.sampling_rate)
        one, many = (positions(data, drawn.tolist(), budget) for data in (free, fixed))
        ratios.append(many[0] / one[0])
        counts.append((one[1], many[1]))
    microbatches = " and ".join(f"{statistics.mean(c):.1f}" for c in zip(*counts, strict=True))
    print(
        f"{run.task['name']}: {statistics.median(ratios):.2f} times the positions (from "
        f"{min(ratios):.2f} to {max(ratios):.2f}, {STEPS} batches of "
        f"{parts.mechanism.batch_size:,}), {microbatches} microbatches a step"
    )


if __name__ == "__main__":
    main()
