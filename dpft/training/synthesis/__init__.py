"""Synthetic records from a privately trained model, and what may be said of their privacy."""

from dpft.training.synthesis.sampling import Synthetic, keep, sample
from dpft.training.synthesis.side_file import as_markdown, side_file, side_path
from dpft.training.synthesis.sources import Sources, find_sources

__all__ = [
    "Sources",
    "Synthetic",
    "as_markdown",
    "find_sources",
    "keep",
    "sample",
    "side_file",
    "side_path",
]
