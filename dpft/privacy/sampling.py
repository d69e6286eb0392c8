"""Which records each step sees: Poisson sampling, the same cut to a size, or shuffled batches.

A *logical batch* is what one noisy step is computed from. A *microbatch* is a piece of it, cut to
fit memory and never by meaning: clipped sums add up over microbatches.

**Microbatches have fixed shapes**, which do not depend on the other records of the batch.
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

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dpft.privacy import keys

if TYPE_CHECKING:
    from dpft.privacy.mechanism import Mechanism


class Sampler(Protocol):
    """Draws the logical batch of a step; the same step always gives the same records."""

    def batch(self, step: int) -> list[int]:
        """Return the indices of the records of logical batch ``step`` (from 0), ascending.

        Where batches have one size, `dpft.privacy.sampling.BLANK` follows for what is missing.
        """
        ...


class PoissonSampler:
    """Each record joins each batch independently with probability ``q = B/N``.

    Guarantee: this is the sampling that every accountant here assumes, against an adversary who
    cannot distinguish ChaCha20's keystream from random bits. Record ``i`` joins if word ``i`` of
    the step's keystream, as a number below ``2^64``, is below ``floor(2^64 B/N)``.
    """

    def __init__(self, mechanism: Mechanism, key: bytes) -> None:
        self._size = mechanism.dataset_size
        self._last = (mechanism.batch_size << 64) // mechanism.dataset_size - 1
        self._places = mechanism.max_batch
        self._key = key

    def _words(self, purpose: str, step: int) -> npt.NDArray[np.uint64]:
        words = keys.words(keys.derive(self._key, purpose, step), 0, self._size)
        return words.view(np.uint64)

    def batch(self, step: int) -> list[int]:
        drawn = np.flatnonzero(self._words("sampling", step) <= self._last)
        indices: list[int] = drawn.tolist()
        return indices


class TruncatedPoissonSampler(PoissonSampler):
    """Poisson sampling into batches of ``M`` places.

    What is missing in a batch is filled up with blanks; of what is too much, ``M`` records stay,
    chosen uniformly at random: those with the smallest words of a keystream of the step's own.

    Guarantee: the sampling of `dpft.privacy.accounting.rdp`, with the words of
    `PoissonSampler`.
    """

    def batch(self, step: int) -> list[int]:
        assert self._places is not None
        drawn = super().batch(step)
        if len(drawn) <= self._places:
            return drawn + [BLANK] * (self._places - len(drawn))
        order = np.argsort(self._words("truncation", step)[drawn], kind="stable")
        return sorted(drawn[place] for place in order[: self._places].tolist())


class ShuffleSampler:
    """Fixed-size batches from a fresh permutation each epoch; a remainder is left out.

    It repeats what published code ran. Its privacy is *not* what the accountants compute; every
    record, table and card that uses it says so.
    """

    def __init__(self, mechanism: Mechanism, key: bytes) -> None:
        self._batch_size = mechanism.batch_size
        self._size = mechanism.dataset_size
        self._key = key
        self._epoch = -1
        self._order = np.zeros(0, np.int64)

    def batch(self, step: int) -> list[int]:
        epoch, position = divmod(step, self._size // self._batch_size)
        if epoch != self._epoch:  # of ten million records a permutation takes a second
            generator = keys.generator(self._key, "shuffle", epoch)
            self._epoch, self._order = epoch, generator.permutation(self._size)
        start = position * self._batch_size
        return sorted(self._order[start : start + self._batch_size].tolist())


SAMPLERS: dict[str, type[PoissonSampler] | type[ShuffleSampler]] = {
    "poisson": PoissonSampler,
    "truncated_poisson": TruncatedPoissonSampler,
    "shuffle": ShuffleSampler,
}


def microbatches(
    batch: Sequence[int], lengths: Sequence[int] | npt.NDArray[Any], token_budget: int
) -> list[list[int]]:
    """Cut a logical batch into microbatches of similar length.

    Args:
        batch: record indices.
        lengths: length in tokens of *every* record, indexed by record.
        token_budget: most padded tokens (records times longest) in one microbatch; a record longer
            than the budget is a microbatch by itself.
    """
    if token_budget < 1:
        raise ValueError(f"token budget is {token_budget}; expected at least 1")
    pieces: list[list[int]] = []
    for index in sorted(batch, key=lambda i: (lengths[i], i)):
        # Ascending order: the newest record is the longest, so it alone sets the padded width.
        if pieces and (len(pieces[-1]) + 1) * lengths[index] <= token_budget:
            pieces[-1].append(index)
        else:
            pieces.append([index])
    return pieces


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
