"""Repeated steps: as many further steps to every accountant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpft.privacy import Mechanism, accounting
from dpft.privacy.guarantee import guarantee

KEY = b"k" * 32
RUN = Mechanism(1000, 100, 40, 1.1, (0.1,), 1e-5, target_epsilon=2.0)


@pytest.mark.parametrize("quantiles", [False, True])
def test_epsilons_are_those_of_all_releases(quantiles):
    run = RUN
    if quantiles:
        from dpft.privacy.quantiles import Quantiles

        run = RUN.over((0.1, 0.2), quantiles=Quantiles(0.5, 0.2), quantile_budget=0.1)
    longer, again = replace(run, steps=47), replace(run, repeated=7)
    assert again.releases == 47
    assert again.epsilons() == longer.epsilons()
    assert again.rdp_after(40) == longer.rdp_after(47) > run.rdp_after(40)
    assert again.rdp_after(12) == run.rdp_after(19)
    assert (
        again.epsilon_after(40)
        >= accounting.epsilon_pld(
            sampling_rate=0.1, noise_multiplier=run.total_noise_multiplier, steps=47, delta=1e-5
        )
        - 1e-9
    )
    # Not a step, a batch or a standard deviation of the noise changes.
    assert again.noise_stds(again.first_thresholds) == run.noise_stds(run.first_thresholds)
    assert again.sampler(KEY).batch(39) == run.sampler(KEY).batch(39)


def test_the_guarantee_is_of_all_releases_and_says_so():
    plain, again = (
        guarantee(replace(RUN, repeated=repeated), noun="record", unit="one row")
        for repeated in (0, 7)
    )
    assert (plain.steps_taken, again.steps_taken) == (40, 47)
    assert again.stated > plain.stated
    assert again.stated == pytest.approx(replace(RUN, steps=47).epsilons()["pld"])
    (caveat,) = set(again.caveats) - set(plain.caveats)
    assert caveat.startswith("7 of the 47 noisy steps repeat earlier ones")
    assert ("Steps", "47") in again.figures()
