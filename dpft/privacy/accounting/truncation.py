"""Poisson samples that are cut to a largest size: what that costs, and which size costs little.

A step draws a Poisson sample and, where it has more than ``M`` records, keeps ``M`` of them, chosen
uniformly at random (Chua et al. 2024, arXiv 2411.04205). Batches then fit memory of one size. But a
record that joins a full batch may push another one out: it changes the sum by the difference of two
gradients, which is up to twice the sensitivity.

**What a step costs.** Let the smaller one of two neighbouring data sets have ``n`` records, the
other one ``x`` besides, and let ``r`` of the ``n`` be sampled. If ``r < M``, nothing is cut, with
``x`` or without: the step is the usual one, noise ``sigma`` at rate ``q``. If ``r >= M``, cut the
``r`` to ``M`` first. With ``x`` in the sample, a uniform choice of ``M`` of the ``r + 1`` has ``x``
with probability ``M / (r + 1)``, in the place of a uniformly chosen one of the ``M``; so all in all
with probability at most ``q`` one gradient of the sum is another, which moves it by at most twice
the sensitivity: noise ``sigma / 2`` at rate ``q``. Tell the adversary ``r``, which is distributed
alike with and without ``x``, and who of the ``n`` was kept: the two outputs are a mixture, over
what was told, of pairs that are no farther apart than these two mechanisms. Hockey-stick
divergences, and moments of Renyi divergences, of such a mixture are the mixtures of the parts', in
both directions (joint convexity). So a step is dominated by

    the subsampled Gaussian mechanism (q, sigma)      with probability 1 - p,
    the subsampled Gaussian mechanism (q, sigma / 2)  with probability p = P(Bin(n, q) >= M),

and steps compose as any dominating pairs do (Zhu, Dong & Wang 2022). The second part is never the
better one, so that a larger ``p`` is never the smaller cost: ``p`` for ``n = N``, which covers a
record more than the ``N`` that there are, covers a record less as well.

dp-accounting's ``PLDAccountant`` prices its ``TruncatedSubsampledGaussianDpEvent``, after Ganesh
(2025, arXiv 2508.15089), by the same two parts, with the slightly smaller rate that the second has
at a given ``n``, and with a bound for replacing a record in place of this one: 3.21 where this is
3.00 (tests/privacy/test_truncation.py). Its ``RdpAccountant`` does not know the event. Chua et al.
add ``(1 + e^epsilon) T P(Bin(n, q) > M)`` to the delta of Poisson sampling, which is more.
"""

from __future__ import annotations

from scipy import special

SHARE = 0.01
"""Of delta: what cutting may cost over all steps where no size was given."""


def overflow(*, dataset_size: int, sampling_rate: float, max_batch: int) -> float:
    """``p = P(Bin(N, q) >= M)``: how likely a sample of the others leaves no room for one more.

    Args:
        dataset_size: ``N``.
        sampling_rate: ``q``, in (0, 1].
        max_batch: ``M``, at least 1.
    """
    if max_batch > dataset_size:
        return 0.0
    return float(special.betainc(max_batch, dataset_size - max_batch + 1, sampling_rate))


def fitting_size(*, dataset_size: int, sampling_rate: float, steps: int, delta: float) -> int:
    """The least size at which cutting costs at most `SHARE` of delta: all records and one at most.

    If no step is cut, which fails with probability at most ``steps * p``, the run is that of
    Poisson sampling.
    """
    least, enough = 0, dataset_size + 1  # where nothing is ever cut
    while enough - least > 1:
        size = (least + enough) // 2
        p = overflow(dataset_size=dataset_size, sampling_rate=sampling_rate, max_batch=size)
        if steps * p <= SHARE * delta:
            enough = size
        else:
            least = size
    return enough
