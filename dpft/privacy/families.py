"""The registry of clipping rules for layers of other libraries; packages above this one fill it.

No torch: a package registers the name of its module, which is imported with the first clipper.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpft.privacy.clipping.rules import Family

_MODULES: dict[str, None] = {}


def register(module: str) -> None:
    """Register a module that is a `Family`, by its name."""
    _MODULES[module] = None


def registered() -> tuple[Family, ...]:
    """Return the registered modules."""
    return tuple(import_module(module) for module in _MODULES)
