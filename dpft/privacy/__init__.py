"""The privacy core: sampling, clipping, noise and accounting. Knows no task, model or file.

>>> clipper = make_clipper(model, "bk", threshold=0.1)  # doctest: +SKIP
>>> clipper.backward(losses)  # losses: (B,); .grad now holds the sum of clipped gradients
"""

from dpft.privacy.clipping import Clipper
from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.clipping.styles import make_clipper
from dpft.privacy.mechanism import Mechanism
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.sampling import microbatches

__all__ = [
    "Clipper",
    "Mechanism",
    "Quantiles",
    "UnsupportedLayerError",
    "make_clipper",
    "microbatches",
]
