"""The arguments of an accountant for one step, their ranges, and samples cut to a size.

With ``truncated_poisson`` a step draws a Poisson sample and, where it has more than ``M`` records,
keeps ``M`` of them, chosen uniformly (Chua et al. 2024, arXiv 2411.04205). Batches then fit memory
of one size, but a record that joins a full batch may push another one out, which changes the sum by
up to twice the sensitivity.

**What a step costs.** Let the smaller of two neighbouring data sets have ``n`` records, and the
other one ``x`` in addition; let ``r`` of the ``n`` be sampled. If ``r < M``, nothing is cut, with
or without ``x``: the step has noise ``sigma`` at rate ``q``. If ``r >= M``, cut the ``r`` to ``M``
first. If ``x`` is sampled, it takes the place of a uniformly chosen one of the ``M`` with
probability ``M / (r + 1)``. With probability at most ``q``, then, one gradient of the sum is
another one, which moves the sum by at most twice the sensitivity: noise ``sigma / 2`` at rate
``q``. Let the adversary know ``r``, which does not depend on ``x``, and which of the ``n`` were
kept: the two outputs are mixtures, over what it knows, of pairs that are no farther apart than
those of the two mechanisms. Hockey-stick divergences and Renyi moments are jointly convex, so that
a step is dominated by

    the subsampled Gaussian mechanism (q, sigma)      with probability 1 - p,
    the subsampled Gaussian mechanism (q, sigma / 2)  with probability p = P(Bin(n, q) >= M),

and steps compose as any dominating pairs do (Zhu, Dong & Wang 2022). A larger ``p`` never costs
less: ``p`` for ``n = N`` covers a record more than the ``N`` that there are, and one less.

dp-accounting's ``TruncatedSubsampledGaussianDpEvent`` (Ganesh 2025, arXiv 2508.15089) bounds the
second part by replacing a record: epsilon 3.21 where this is 3.00 (tests/privacy/test_truncation).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from scipy import special

SHARE = 0.01
"""The share of delta that cutting may cost over all steps if no size is given."""


_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "sampling_rate": (
        lambda rate: 0 < rate <= 1,
        "a number in (0, 1]: choose a batch size of at least 1 and at most the dataset size",
    ),
    "noise_multiplier": (lambda sigma: sigma >= 0, "a number >= 0"),
    "steps": (lambda steps: steps >= 0 and steps == steps // 1, "a whole number >= 0"),
    "overflow": (lambda p: 0 <= p <= 1, "a probability"),
    "delta": (
        lambda delta: 0 < delta < 1,
        "a number in (0, 1), smaller than 1 / dataset size: type for instance privacy.delta=1e-5",
    ),
}


def validate(**given: float) -> None:
    """Raise ValueError for the first argument outside its range (NaN is outside every range)."""
    for name, value in given.items():
        inside, expected = _RANGES[name]
        if not inside(value):
            raise ValueError(f"got {name}={value}; expected {expected}")
    # A step without noise is (0, q)-DP: such a delta would call it private.
    if given.get("delta", 0) >= given.get("sampling_rate", 1):
        raise ValueError(
            f"privacy.delta is {given['delta']:g}, and a step draws each record with probability "
            f"{given['sampling_rate']:.3g}; expected a smaller delta, since this one allows a step "
            "to publish its records without noise. Leave it out for the default"
        )


def spent(mechanism: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a step costs, as accountants take it, of the mechanism in a record or ledger."""
    return {
        "sampling_rate": mechanism["sampling_rate"],
        "noise_multiplier": mechanism.get("total_noise_multiplier", mechanism["noise_multiplier"]),
        "overflow": mechanism.get("overflow", 0.0),
    }


def steps_for(*, dataset_size: int, batch_size: int, epochs: float) -> int:
    """Return the steps of a run: ``epochs`` times ``floor(dataset_size / batch_size)``, rounded up.

    A loader that drops its last incomplete batch takes as many, which reproduces the papers'
    epsilons (docs/reference/accounting.md).

    Raises:
        ValueError: if a size is below 1, ``batch_size > dataset_size`` or ``epochs < 0``.
    """
    if dataset_size < 1 or not 1 <= batch_size <= dataset_size or not 0 <= epochs < math.inf:
        raise ValueError(
            f"got dataset_size={dataset_size}, batch_size={batch_size}, epochs={epochs}; expected "
            "1 <= batch_size <= dataset_size and 0 <= epochs"
        )
    steps = epochs * (dataset_size // batch_size)
    return math.ceil(steps * (1 - 1e-12))  # 0.1 * 30 is 3.0000000000000004 and must not buy a step


def overflow(*, dataset_size: int, sampling_rate: float, max_batch: int) -> float:
    """Return ``p = P(Bin(N, q) >= M)``: how likely a sample leaves no room for one more record."""
    if max_batch > dataset_size:
        return 0.0
    return float(special.betainc(max_batch, dataset_size - max_batch + 1, sampling_rate))


def fitting_size(*, dataset_size: int, sampling_rate: float, steps: int, delta: float) -> int:
    """Return the least size at which cutting costs at most `SHARE` of delta over all steps.

    If no step is cut, which fails with probability at most ``steps * p``, the run is that of
    Poisson sampling. The size is at most ``dataset_size + 1``, with which nothing is ever cut.
    """
    least, enough = 0, dataset_size + 1
    while enough - least > 1:
        size = (least + enough) // 2
        p = overflow(dataset_size=dataset_size, sampling_rate=sampling_rate, max_batch=size)
        if steps * p <= SHARE * delta:
            enough = size
        else:
            least = size
    return enough
