"""What synthetic records are worth: figures of them, each with the guarantee that covers it."""

from dpft.training.quality.figures import (
    Coverage,
    QualityNumber,
    downstream,
    nearness,
    overlaps,
    shapes,
)
from dpft.training.quality.texts import Generated, read_generated, real_texts, written

__all__ = [
    "Coverage",
    "Generated",
    "QualityNumber",
    "downstream",
    "nearness",
    "overlaps",
    "read_generated",
    "real_texts",
    "shapes",
    "written",
]
