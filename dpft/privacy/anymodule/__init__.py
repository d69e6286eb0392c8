"""Clipping of any module without a layer rule: it is computed again, for each record by itself.

`AnyModule` is given to `dpft.privacy.clipping.Clipper` as its handler of such parameters.
"""

from dpft.privacy.anymodule.frames import AnyModule

__all__ = ["AnyModule"]
