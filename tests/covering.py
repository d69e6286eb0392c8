"""Few combinations of some factors in which every two of their values meet."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Combination = tuple[Any, ...]


def pairs_of(combinations: Iterable[Combination]) -> set[Combination]:
    """Return every two values that one of the combinations has, each with its factor's number."""
    return {pair for one in combinations for pair in itertools.combinations(enumerate(one), 2)}


def possible(
    *factors: Sequence[Any], excluded: Callable[..., bool] = lambda *values: False
) -> list[Combination]:
    """Return all combinations of one value of each factor that are not excluded."""
    return [one for one in itertools.product(*factors) if not excluded(*one)]


def covering(
    *factors: Sequence[Any], excluded: Callable[..., bool] = lambda *values: False
) -> list[Combination]:
    """Choose combinations until every pair of values that some combination has is in one.

    The choice is greedy: the next combination has the most pairs that are still missing. It is the
    first of those, so that every process chooses the same.
    """
    combinations, numbers = possible(*factors, excluded=excluded), {}
    sets = [
        sum(1 << numbers.setdefault(pair, len(numbers)) for pair in pairs_of([one]))
        for one in combinations
    ]
    chosen, missing = [], (1 << len(numbers)) - 1
    heap = [(-one.bit_count(), number) for number, one in enumerate(sets)]
    heapq.heapify(heap)
    while missing:
        gain, number = heap[0]  # what it had once, which has become less at most
        if (now := -(sets[number] & missing).bit_count()) > gain:
            heapq.heapreplace(heap, (now, number))
            continue
        chosen.append(combinations[number])
        missing &= ~sets[number]
    return chosen
