"""Per-example clipping: the clipper, its plans, and its layer rules."""

from dpft.privacy.clipping.clipper import Clipper, Observer
from dpft.privacy.clipping.groups import CLIP_FUNCTIONS

__all__ = ["CLIP_FUNCTIONS", "Clipper", "Observer"]
