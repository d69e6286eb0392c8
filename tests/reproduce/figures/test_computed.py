"""Figures of the accountant against the accountant."""

import math

import pytest

from dpft.privacy.accounting import calibrate_noise, epsilon_rdp
from dpft.reproduce.figures import computed

NAMED = ("li2022/6", "title", "source")


def test_figure_6_is_calibration_at_each_rate():
    content = computed.noise_by_rate(*NAMED, exponents=(-12, -8, -4, -2))
    curve, rule = content.panels[0].series
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


def test_the_rule_asks_for_too_little_below_2_to_the_minus_8():
    content = computed.noise_by_rate(*NAMED, exponents=(-12, -9, -4, -2))
    curve, rule = content.panels[0].series
    for needed, told in zip(curve.points[:2], rule.points[:2], strict=True):
        assert told.y < 0.75 * needed.y
    assert rule.points[2].y == pytest.approx(curve.points[2].y, rel=0.05)


def test_figure_3a_divides_by_the_rate():
    told = []
    content = computed.effective_noise(
        *NAMED, tell=lambda *far: told.append(far), steps=(100, 400), rates=(0.01, 0.1)
    )
    short, long = content.panels[0].series
    sigma = calibrate_noise(
        target_epsilon=3, delta=1e-5, sampling_rate=0.1, steps=400, accountant="rdp"
    )
    assert long.points[1].y == sigma / 0.1
    assert all(s.points[0].y > s.points[1].y for s in (short, long))
    assert all(a.y < b.y for a, b in zip(short.points, long.points, strict=True))
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_steps_are_whole():
    assert computed.steps_at(2.0**-12) == 204_800
    assert computed.steps_at(0.3) == 167
