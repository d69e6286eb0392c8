"""Which records each step sees: Poisson sampling, the same cut to a size, or shuffled batches.

A *logical batch* is what one noisy step is computed from. A *microbatch* is a piece of it, cut to
fit memory and never by meaning: clipped sums add up over microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dpft.privacy import keys
from dpft.privacy.shapes import BLANK

if TYPE_CHECKING:
    from dpft.privacy.mechanism import Mechanism


class Sampler(Protocol):
    """Draws the logical batch of a step; the same step always gives the same records."""

    def batch(self, step: int) -> list[int]:
        """Return the indices of the records of logical batch ``step`` (from 0), ascending.

        Where batches have one size, `dpft.privacy.shapes.BLANK` follows for what is missing.
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

    Guarantee: the sampling of `dpft.privacy.accounting.step_arguments`, with the words of
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
