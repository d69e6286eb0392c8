"""Per-example clipping: the clipper, its styles, plans, layer rules and checks."""

from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.clipping.functions import CLIP_FUNCTIONS
from dpft.privacy.clipping.styles import make_clipper

__all__ = ["CLIP_FUNCTIONS", "Clipper", "make_clipper"]
