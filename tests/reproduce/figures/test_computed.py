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
