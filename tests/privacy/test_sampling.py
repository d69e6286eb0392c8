"""Poisson sampling is what is accounted for; microbatches lose and repeat nobody."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.privacy import Mechanism, keys, microbatches

N, B = 500, 50


def sampler(sampling="poisson", batch_size=B, size=N, key=b"key"):
    return Mechanism(size, batch_size, 100, 1.0, (1.0,), 1e-5, sampling).sampler(key)


def test_each_record_joins_with_probability_q_independently():
    draws = [sampler().batch(step) for step in range(2000)]
    q = B / N
    sizes = [len(d) for d in draws]
    mean = sum(sizes) / len(sizes)
    variance = sum((s - mean) ** 2 for s in sizes) / len(sizes)
    assert mean == pytest.approx(B, abs=5 * math.sqrt(N * q * (1 - q) / 2000))
    # A fixed-size sampler has variance 0; independent coins have N q (1 - q).
    assert variance == pytest.approx(N * q * (1 - q), rel=5 * math.sqrt(2 / 2000))
    counts = Counter(i for d in draws for i in d)
    spread = math.sqrt(2000 * q * (1 - q))
    assert set(counts) == set(range(N))
    assert all(abs(counts[i] - 2000 * q) < 5.5 * spread for i in range(N))
    together = sum(1 for d in draws if 3 in d and 4 in d)
    assert together == pytest.approx(2000 * q * q, abs=5 * math.sqrt(2000 * q * q))


def test_a_record_joins_if_its_word_is_below_the_rate(monkeypatch):
    """``floor(2^64 B/N)`` of the words, which have no sign; at rate one all of them."""
    third = (1 << 64) // 3
    words = np.array([third - 1, third, 0, third + 1, -1, 1])
    monkeypatch.setattr(keys, "words", lambda key, start, stop: words)
    assert sampler(batch_size=2, size=6).batch(0) == [0, 2, 5]
    assert sampler(batch_size=6, size=6).batch(0) == list(range(6))


def test_shuffling_covers_each_epoch_once_with_fixed_batches():
    shuffled = sampler("shuffle")
    first = [shuffled.batch(step) for step in range(N // B)]
    assert all(len(batch) == B for batch in first)
    assert sorted(i for batch in first for i in batch) == list(range(N))
    second = [shuffled.batch(step) for step in range(N // B, 2 * (N // B))]
    assert sorted(i for batch in second for i in batch) == list(range(N))
    assert first != second


def test_a_shuffled_batch_does_not_depend_on_those_asked_for_before():
    shuffled = sampler("shuffle")
    for step in (3, 27, 4, 3, 10, 9):
        assert shuffled.batch(step) == sampler("shuffle").batch(step)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    budget=st.integers(1, 200),
    data=st.data(),
)
def test_microbatches_hold_every_record_once_within_the_budget(lengths, budget, data):
    batch = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    pieces = microbatches(batch, lengths, budget)
    assert sorted(i for piece in pieces for i in piece) == sorted(batch)
    for piece in pieces:
        assert len(piece) == 1 or len(piece) * max(lengths[i] for i in piece) <= budget


def test_microbatches_are_filled_to_the_budget():
    assert microbatches([2, 0, 1], [4, 4, 4], 8) == [[0, 1], [2]]
    assert microbatches([0, 1, 2], [4, 4, 4], 11) == [[0, 1], [2]]
    assert microbatches([0, 1, 2], [4, 4, 4], 12) == [[0, 1, 2]]
