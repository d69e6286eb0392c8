"""The privacy core: sampling, clipping, noise and accounting. Knows no task, model or file.

>>> clipper = make_clipper(model, "bk", threshold=0.1)  # doctest: +SKIP
>>> clipper.backward(losses)  # losses: (B,); .grad now holds the sum of clipped gradients

Names are imported when they are asked for: `spec` and `guarantee` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpft.privacy.clipping import Clipper
    from dpft.privacy.clipping.batch import LostRecordError
    from dpft.privacy.clipping.rules import UnsupportedLayerError
    from dpft.privacy.guarantee import Guarantee
    from dpft.privacy.mechanism import Mechanism
    from dpft.privacy.quantiles import Quantiles
    from dpft.privacy.sampling import microbatches
    from dpft.privacy.styles import make_clipper

_HOME = {
    "Clipper": "clipping",
    "Guarantee": "guarantee",
    "LostRecordError": "clipping.batch",
    "Mechanism": "mechanism",
    "Quantiles": "quantiles",
    "UnsupportedLayerError": "clipping.rules",
    "make_clipper": "styles",
    "microbatches": "sampling",
}

__all__ = [
    "Clipper",
    "Guarantee",
    "LostRecordError",
    "Mechanism",
    "Quantiles",
    "UnsupportedLayerError",
    "make_clipper",
    "microbatches",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
