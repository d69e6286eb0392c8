"""Figures of the accountant against the accountant."""

import math

import pytest

from dpft.privacy.accounting import calibrate_noise, epsilon_rdp
from dpft.reproduce.figures import computed
from dpft.reproduce.figures.catalog import Inputs, load


def panel_of(builder, **settings):
    (panel,) = builder(load("li2022/3a"), Inputs("paper"), **settings).panels
    return panel


def test_figure_6_is_calibration_at_each_rate():
    curve, rule = panel_of(computed.noise_by_rate, exponents=(-12, -8, -4, -2)).series
    for point, k in zip(curve.points, (-12, -8, -4, -2), strict=True):
        rate, steps = 2.0**k, 50 * 2**-k
        assert point.x == rate
        assert point.y == calibrate_noise(
            target_epsilon=3, delta=1e-5, sampling_rate=rate, steps=steps, accountant="rdp"
        )
        spent = epsilon_rdp(sampling_rate=rate, noise_multiplier=point.y, steps=steps, delta=1e-5)
        assert 2.99 < spent <= 3
    assert rule.points[-1].y == pytest.approx(curve.points[-1].y)
    assert rule.points[1].y == pytest.approx(rule.points[-1].y / math.sqrt(2**6))


def test_figure_3a_divides_by_the_rate():
    panel = panel_of(computed.effective_noise, steps=(100, 400), rates=(0.01, 0.1))
    short, long = panel.series
    sigma = calibrate_noise(
        target_epsilon=3, delta=1e-5, sampling_rate=0.1, steps=400, accountant="rdp"
    )
    assert long.points[1].y == sigma / 0.1
    assert all(s.points[0].y > s.points[1].y for s in (short, long))
    assert all(a.y < b.y for a, b in zip(short.points, long.points, strict=True))
