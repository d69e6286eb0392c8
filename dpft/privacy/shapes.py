"""Microbatches of fixed shapes, which do not depend on the other records of the batch.

In half precision a product is rounded to 8 bits, and how depends on the shapes it is computed in:
how wide a sequence is padded, and on some devices how many rows a batch has. A long record that
widens its microbatch moves the gradient of every other record in it by up to half a percent, and
equal records move equally: a thousand of them moved a sum by three and a half thresholds. So
every record is padded to a width that follows from the record alone, only records of one shape come
together, and every microbatch of that shape has the same number of rows: those that no record needs
are filled with padding examples, which add nothing.

Where every batch has one physical size (`dpft.privacy.sampling.TruncatedPoissonSampler`), there is
one shape for all, which any record fits in, and every step has the same number of microbatches.

A padding example is shorter than any width. At least one is in every microbatch, since libraries
choose another kernel where nothing is padded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

BLANK = -1
"""The index of a padding example in a microbatch."""

_NARROWEST = 16
# Microbatches of one shape that a logical batch fills if all its units have it. Cut smaller they
# have less padding; what is too small wastes the hardware.
_SHARE = 16
# Each is one program, whose start costs as much as some rows, and each shape a compilation.
_COMPILED_SHARE, _COMPILED_NARROWEST = 6, 32

Shape = tuple[int, ...]
"""The shape of one unit: its rows, the positions of each, and further widths if any."""


def padded(width: int, most: int, coarse: bool = False) -> int:
    """Return the width that a record of ``width`` positions is padded to.

    Widths are 16, 24, 32, 48, 64, 96, ...: a third is padding at most, and few records are alone.
    ``coarse`` ones are 32, 64, 128, ...

    Args:
        width: positions that the record takes.
        most: positions that any record may take; a model may have no more.
        coarse: whether widths are powers of two.
    """
    if coarse:
        wide = max(_COMPILED_NARROWEST, 1 << (width - 1).bit_length())
        return max(width, min(wide, most))
    wide = _NARROWEST
    while wide < width:
        wide = wide * 3 // 2 if wide & (wide - 1) == 0 else wide * 4 // 3
    return max(width, min(wide, most))


def widest(shapes: Iterable[Sequence[int]]) -> Shape:
    """Return the smallest shape that all of these fit in."""
    return tuple(map(max, zip(*shapes, strict=True)))


@dataclass(frozen=True)
class FixedShapes:
    """Cuts logical batches into microbatches of fixed shapes.

    Attributes:
        batch_size: expected number of units in a logical batch, which is public.
        places: units and padding examples of every logical batch, where all have one shape; None:
            units have different shapes, and batches as many as were drawn.
        compiled: whether each shape is a program: then there are few, of large microbatches.

    Guarantee: the shapes that a unit is computed in follow from that unit and from settings:
    they stay the same whatever other units the batch has.
    """

    batch_size: int
    places: int | None = None
    compiled: bool = False

    def units(self, shape: Shape, token_budget: int) -> int:
        """Return the number of units, padding included, of a microbatch of this shape."""
        fitting = token_budget // (shape[0] * shape[1]) - 1
        if self.places is not None:
            pieces = -(-self.places // max(1, fitting))
            return -(-self.places // pieces) + 1
        return (
            max(
                1,
                min(fitting, -(-self.batch_size // (_COMPILED_SHARE if self.compiled else _SHARE))),
            )
            + 1
        )

    def of(self, piece: Sequence[int], shape_of: Callable[[int], Shape]) -> Shape:
        """Return the shape of a microbatch; of padding alone, only where all have the same."""
        units = piece if self.places is not None else filter(BLANK.__ne__, piece)
        return widest(set(map(shape_of, units)))

    def microbatches(
        self, batch: Sequence[int], shape_of: Callable[[int], Shape], token_budget: int
    ) -> list[list[int]]:
        """Cut a logical batch into microbatches of one shape each.

        Args:
            batch: indices of units; where all have one shape, padding too.
            shape_of: the shape that a unit is padded to, by its index.
            token_budget: most positions in one microbatch, unless two units alone take more.

        Returns:
            Lists of indices in ascending order, each filled up with `BLANK`, of which it has at
            least one; empty for an empty batch.
        """
        of_shape: dict[Shape, list[int]] = {}
        units = sorted(filter(BLANK.__ne__, batch))
        units += [BLANK] * (len(batch) - len(units))
        for index, shape in zip(units, map(shape_of, units), strict=True):
            of_shape.setdefault(shape, []).append(index)
        pieces = []
        for shape in sorted(of_shape):
            members, size = of_shape[shape], self.units(shape, token_budget)
            for start in range(0, len(members), size - 1):
                piece = members[start : start + size - 1]
                pieces.append(piece + [BLANK] * (size - len(piece)))
        return pieces
