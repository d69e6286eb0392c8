"""Repeated steps: drawn from keys of their own, and as many further steps to every accountant."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from dpft.privacy import Mechanism, accounting, keys, normals
from dpft.privacy.guarantee import guarantee

KEY = b"k" * 32
RUN = Mechanism(1000, 100, 40, 1.1, (0.1,), 1e-5, target_epsilon=2.0)


def test_the_first_epoch_has_the_key_of_the_run():
    assert keys.of_epoch(KEY, []) == KEY


def test_every_history_has_a_key_of_its_own():
    said = ["one", "two", "three"]
    histories = [part for n in range(4) for part in permutations(said, n)]
    drawn = {keys.of_epoch(KEY, history) for history in histories}
    assert len(drawn) == len(histories)
    assert keys.of_epoch(keys.of_epoch(KEY, ["one"]), ["two"]) == keys.of_epoch(KEY, ["one", "two"])


def test_a_repeated_step_draws_another_batch():
    """Who is in it is as independent of who was as in any two steps."""
    big = replace(RUN, dataset_size=200_000, batch_size=20_000)
    first, second = (
        set(big.sampler(keys.of_epoch(KEY, history)).batch(7)) for history in ([], ["one"])
    )
    both = len(first & second)
    expected = 200_000 * 0.1 * 0.1
    assert abs(both - expected) < 5 * math.sqrt(expected)


def test_a_repeated_step_draws_other_noise():
    """Subtracting one release from the other leaves noise of twice the variance."""
    z = [
        normals.normals(keys.derive(keys.of_epoch(KEY, history), "noise", 7, "w"), 0, 100_000)
        for history in ([], ["one"])
    ]
    assert abs(float(torch.var(z[0] - z[1])) - 2) < 0.05
    assert abs(float((z[0] * z[1]).mean())) < 0.02


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


def test_an_independent_accountant_finds_the_same_epsilon():
    """Google's, of what was released before the run moved and behind it."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    step = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.1))
    found = replace(RUN, repeated=7).epsilons()
    for accountant, name, tolerance in (
        (PLDAccountant(), "pld", 1e-3),
        (RdpAccountant(), "rdp", 0.03),
    ):
        accountant.compose(step, 31)  # killed there
        accountant.compose(step, 40 - 24)  # continued from the checkpoint of step 24
        assert found[name] == pytest.approx(accountant.get_epsilon(1e-5), rel=tolerance)


def test_one_draw_for_two_releases_would_cost_more_than_is_counted():
    """Why batches are drawn anew: two releases on one sample are one of ``sigma / sqrt(2)``."""
    counted = accounting.epsilon_pld(sampling_rate=0.1, noise_multiplier=1.1, steps=47, delta=1e-5)
    shared = accounting.composed(
        [
            accounting.run_curve(sampling_rate=0.1, noise_multiplier=1.1, steps=33),
            accounting.run_curve(sampling_rate=0.1, noise_multiplier=1.1 / math.sqrt(2), steps=7),
        ]
    ).epsilon(1, 1e-5)
    apart = accounting.epsilon_rdp(sampling_rate=0.1, noise_multiplier=1.1, steps=47, delta=1e-5)
    assert shared > 1.05 * apart > apart > counted


def test_what_is_not_repeated_is_written_as_ever():
    assert "repeated" not in RUN.to_dict()
    assert replace(RUN, repeated=7).to_dict() == RUN.to_dict() | {"repeated": 7}


@pytest.mark.parametrize(("steps", "repeated"), [(40, -1), (0, 1)])
def test_an_impossible_number_is_refused(steps, repeated):
    with pytest.raises(ValueError, match=f"{repeated} repeated steps of {steps}"):
        replace(RUN, steps=steps, repeated=repeated)


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
