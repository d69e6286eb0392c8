"""Checks that what is clipped is all there is, and that the layer rules are right.

`OBSERVERS` are given to `dpft.privacy.clipping.Clipper`.
"""

from dpft.privacy.verification.checker import Checker
from dpft.privacy.verification.guard import Guard

OBSERVERS = (Guard, Checker)

__all__ = ["OBSERVERS", "Checker", "Guard"]
