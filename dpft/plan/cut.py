"""Predict how a logical batch of a run is cut into microbatches."""

from collections.abc import Sequence
from typing import Any

from dpft.config.schema import Run
from dpft.models.load import load_model
from dpft.privacy.sampling import microbatches
from dpft.privacy.shapes import FixedShapes, Shape
from dpft.tasks import load_task
from dpft.tasks.objectives.encoding import encoded

Sample = Sequence[tuple[int, Shape]]
"""Tokens and padded shape of some records."""


def sampled(run: Run, count: int, compiled: bool) -> Sample:
    """Return so many training records, at even distances in the data."""
    task = load_task(run.task)
    records = task.records("train")
    some = [records[i * len(records) // count] for i in range(min(count, len(records)))]
    objective: Any = task.objective(load_model(run.model, task.needs, run.seed, weights=False))
    examples = encoded(objective, some, lambda done: None)
    shapes = [objective.widths(one, coarse=compiled) for one in examples]
    return [(getattr(x, "length", w[0]), (1, *w)) for x, w in zip(examples, shapes, strict=True)]


def cut(run: Run, records: int, sample: Sample, compiled: bool) -> tuple[int, int, int]:
    """Return microbatches, their positions and the tokens of a batch of records like the sample."""
    ordered = sorted(sample)
    batch = [ordered[i * len(ordered) // records] for i in range(records)]
    shape_of = [shape for _, shape in batch].__getitem__
    budget, lengths = run.optim.tokens, [tokens for tokens, _ in batch]
    if compiled or (run.clip.private and run.precision != "float32"):
        fixed = FixedShapes(records, compiled=compiled)
        pieces = fixed.microbatches(range(records), shape_of, budget)
    else:
        pieces = microbatches(range(records), lengths, budget)
    areas = [len(piece) * max(shape_of(i)[1] for i in piece if i >= 0) for piece in pieces]
    return len(pieces), sum(areas), sum(lengths)
