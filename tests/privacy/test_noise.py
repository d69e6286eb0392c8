"""The noise is there, of the right scale, independent everywhere, and fresh at every step."""

import math
from itertools import combinations

import pytest
import torch
from torch import nn

from dpft.privacy import Mechanism, keys, make_clipper
from dpft.privacy.noise import GaussianNoise

SIZE = 40_000


def mechanism(sigma=1.7, threshold=0.1, batch_size=64, steps=5):
    return Mechanism(1000, batch_size, steps, sigma, (threshold,), 1e-5)


def parameters():
    return {
        "a": nn.Parameter(torch.zeros(SIZE)),
        "b": nn.Parameter(torch.zeros(SIZE // 100, 100)),
    }


def draw(step, key=b"key", mech=None, sums=0.0):
    params = parameters()
    for p in params.values():
        p.grad = torch.full_like(p, sums)
    GaussianNoise(mech or mechanism(), key).privatise_(params, step)
    return {name: p.grad.flatten() for name, p in params.items()}


def correlation(x, y):
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()


@pytest.mark.parametrize(("sigma", "threshold", "batch_size"), [(1.7, 0.1, 64), (0.6, 3.0, 10)])
def test_noise_has_the_stated_scale(sigma, threshold, batch_size):
    """Fails if noise is dropped, halved, doubled, or divided by anything but the expected batch."""
    grads = draw(0, mech=mechanism(sigma, threshold, batch_size))
    expected = sigma * threshold / batch_size
    for grad in grads.values():
        # The standard deviation of n draws is known to within 1/sqrt(2n) of itself: 0.35%.
        assert grad.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * SIZE))
        assert abs(grad.mean().item()) < 5 * expected / math.sqrt(SIZE)


def test_noise_is_gaussian():
    grads = draw(0)
    std = mechanism().noise_std / 64
    for grad in grads.values():
        z = (grad / std).double()
        for quantile in (-2.0, -1.0, 0.0, 1.0, 2.0):
            expected = 0.5 * (1 + math.erf(quantile / math.sqrt(2)))
            share = (z < quantile).double().mean().item()
            assert share == pytest.approx(expected, abs=5 * math.sqrt(expected / SIZE))
        assert z.pow(4).mean().item() == pytest.approx(3.0, abs=5 * math.sqrt(96 / SIZE))


def test_noise_is_independent_across_steps_and_parameters():
    """Fails if one stream is repeated for another step or another parameter, shifted or not."""
    streams = [g for step in range(3) for g in draw(step).values()]
    for x, y in combinations(streams, 2):
        assert abs(correlation(x, y)) < 5 / math.sqrt(SIZE)
    for x in streams:
        assert abs(correlation(x[1:], x[:-1])) < 5 / math.sqrt(SIZE)


def test_noise_of_a_resumed_run_is_fresh_and_a_replayed_step_repeats_itself():
    """A new process has only (key, step): replaying gives the same, going on gives new noise."""
    before = [draw(step)["a"] for step in range(3)]
    assert torch.equal(draw(2)["a"], before[2])
    resumed = draw(3)["a"]
    for old in before:
        assert abs(correlation(resumed, old)) < 5 / math.sqrt(SIZE)


def test_another_key_gives_other_noise():
    assert abs(correlation(draw(0)["a"], draw(0, key=b"other")["a"])) < 5 / math.sqrt(SIZE)


def test_the_sum_is_kept_and_divided_by_the_expected_batch_size():
    with_sum, without = draw(0, sums=6.4), draw(0)
    for name in with_sum:
        torch.testing.assert_close(
            with_sum[name] - without[name], torch.full((SIZE,), 0.1), rtol=0, atol=1e-6
        )


def test_an_empty_batch_is_a_noise_only_step():
    params = parameters()
    GaussianNoise(mechanism(), b"key").privatise_(params, 0)
    expected = draw(0)
    for name, p in params.items():
        assert torch.equal(p.grad.flatten(), expected[name])


def test_without_noise_the_gradient_is_the_mean():
    none = Mechanism(1000, 64, 5, 0.0, (), 1e-5)
    assert torch.allclose(draw(0, mech=none, sums=64.0)["a"], torch.ones(SIZE))


def test_half_precision_gradients_get_float32_noise():
    """Noise far below the sum's rounding step still moves the result as float32 would."""
    param = nn.Parameter(torch.zeros(SIZE, dtype=torch.bfloat16))
    param.grad = torch.full((SIZE,), 1.0, dtype=torch.bfloat16)
    GaussianNoise(mechanism(0.01, 0.1, 1), b"key").privatise_({"p": param}, 0)
    assert param.grad.dtype == torch.bfloat16


def test_noise_refuses_a_clipper_of_another_sensitivity():
    clipper = make_clipper(nn.Linear(2, 2), "bk", threshold=0.5)
    with pytest.raises(ValueError, match=r"0\.5.*0\.1"):
        mechanism(threshold=0.1).noise(b"key", clipper)


def test_labels_of_streams_do_not_run_together():
    assert keys.derive(b"k", "a", "b") != keys.derive(b"k", "ab")
    assert keys.derive(b"k", "noise", 1) != keys.derive(b"k", "noise", "1")
    assert keys.derive(b"k", "noise", 1, 2) != keys.derive(b"k", "noise", 12)
