"""The privacy core: sampling, clipping, noise and accounting. Knows no task, model or file.

>>> clipper = make_clipper(model, "bk", threshold=0.1)  # doctest: +SKIP
>>> clipper.backward(losses)  # losses: (B,); .grad now holds the sum of clipped gradients

Names are imported when they are asked for: `spec` and `guarantee` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpft.privacy.clipping import Clipper as Clipper
    from dpft.privacy.clipping.batch import LostRecordError as LostRecordError
    from dpft.privacy.clipping.rules import Family
    from dpft.privacy.clipping.rules import UnsupportedLayerError as UnsupportedLayerError
    from dpft.privacy.guarantee import Guarantee as Guarantee
    from dpft.privacy.mechanism import Mechanism as Mechanism
    from dpft.privacy.quantiles import Quantiles as Quantiles
    from dpft.privacy.sampling import microbatches as microbatches
    from dpft.privacy.styles import make_clipper as make_clipper

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
_RULES: dict[str, None] = {}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def register_rules(module: str) -> None:
    """Register clipping rules for the layers of a library: a module that is a `Family`, by name.

    Packages above this one do so. The module is imported with the first clipper.
    """
    _RULES[module] = None


def registered_rules() -> "tuple[Family, ...]":
    """Return the registered modules."""
    return tuple(import_module(module) for module in _RULES)
