"""Poisson samples cut to a size: what is accounted for bounds what enumeration finds."""

import dataclasses
import itertools
import math
from collections import Counter

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpft.privacy import Mechanism
from dpft.privacy.accounting import epsilon_pld, epsilon_rdp, overflow, rdp_curve
from dpft.privacy.accounting.pld import LossDistribution
from dpft.privacy.accounting.rdp import SHARE, fitting_size
from dpft.privacy.sampling import BLANK

# Records of the smaller data set, rate, places, noise. The last is cut at every step.
TINY = [(3, 0.5, 2, 1.0), (4, 0.8, 2, 0.7), (4, 0.3, 1, 1.5), (2, 0.9, 2, 0.8), (3, 1.0, 3, 1.0)]
EPSILONS = np.linspace(0, 6, 25)


def batches(records, rate, places):
    """How likely each batch is, by enumerating samples and what is kept of them."""
    found = Counter()
    for size in range(records + 1):
        for sample in itertools.combinations(range(records), size):
            weight = rate**size * (1 - rate) ** (records - size)
            kept = list(itertools.combinations(sample, min(size, places)))
            for batch in kept:
                found[batch] += weight / len(kept)
    return found


def densities(records, rate, places, noise, x):
    """Of the noisy sum, without and with one more record: the first ones are -1, the last is 1."""
    made = []
    for count in (records, records + 1):
        density = np.zeros_like(x)
        for batch, weight in batches(count, rate, places).items():
            total = sum(1.0 if index == records else -1.0 for index in batch)
            density += weight * stats.norm.pdf(x, total, noise)
        made.append(density)
    return made


def grid(records, noise, count):
    return np.linspace(-records - 12 * noise, 1 + 12 * noise, count, retstep=True)


def cost(records, rate, places, noise):
    # As `Mechanism` asks: of all its records, whichever of the two data sets is the true one.
    p = overflow(dataset_size=records, sampling_rate=rate, max_batch=places)
    return {"sampling_rate": rate, "noise_multiplier": noise, "overflow": p}


@pytest.mark.parametrize(("tiny", "steps"), [*((t, 1) for t in TINY), (TINY[1], 2)])
def test_no_two_data_sets_are_told_apart_better_than_is_accounted_for(tiny, steps):
    """Hockey-stick divergences of one step and of two, in both directions, on a grid."""
    x, width = grid(tiny[0], tiny[3], 20001 if steps == 1 else 1001)
    without, among = densities(*tiny, x)
    if steps == 2:
        without, among, width = np.outer(without, without), np.outer(among, among), width**2
    claimed = LossDistribution(**cost(*tiny), steps=steps).profile(EPSILONS).deltas
    usual = LossDistribution(**(cost(*tiny) | {"overflow": 0.0}), steps=steps)
    found = []
    for p, q in ((without, among), (among, without)):
        found.append([np.maximum(p - math.exp(e) * q, 0).sum() * width for e in EPSILONS])
        assert (found[-1] <= claimed + 1e-9).all()
    # Without the part for cutting it would be no bound, wherever cutting is not rare.
    if cost(*tiny)["overflow"] > 0.5:
        assert (np.max(found, 0) > 1.05 * usual.profile(EPSILONS).deltas).any()


@pytest.mark.parametrize("tiny", TINY)
def test_renyi_divergences_are_no_larger_than_is_accounted_for(tiny):
    x, width = grid(tiny[0], tiny[3], 20001)
    without, among = densities(*tiny, x)
    curve = rdp_curve(**cost(*tiny))
    for order in (1.1, 1.5, 2.0, 4.0, 8.0):
        (claimed,) = curve.rdp[curve.orders == order]
        for p, q in ((without, among), (among, without)):
            moment = np.exp(order * np.log(p) + (1 - order) * np.log(q)).sum() * width
            assert math.log(moment) / (order - 1) <= claimed + 1e-9


SETTINGS = [
    (67_349, 1024, None, 0.76, 195),
    (67_349, 1024, 1024, 1.4, 195),
    (2000, 100, 110, 2, 30),
]


@pytest.mark.parametrize(("size", "batch", "places", "noise", "steps"), SETTINGS)
def test_epsilon_lies_between_poisson_samplings_and_the_published_bounds(
    size, batch, places, noise, steps
):
    delta, rate = 1 / (2 * size), batch / size
    given = {"dataset_size": size, "sampling_rate": rate}
    places = places or fitting_size(**given, steps=steps, delta=delta)
    p = overflow(**given, max_batch=places)
    event = {"sampling_rate": rate, "noise_multiplier": noise, "steps": steps}
    pld = epsilon_pld(**event, overflow=p, delta=delta)
    assert epsilon_pld(**event, delta=delta) < pld
    assert pld <= epsilon_rdp(**event, overflow=p, delta=delta)
    mechanism = Mechanism(
        *(size, batch, steps, noise, (1.0,), delta, "truncated_poisson"), max_batch=places
    )
    assert pld == mechanism.epsilons()["pld"]
    # Ganesh (2025), as dp-accounting has it.
    step = dp.TruncatedSubsampledGaussianDpEvent(size + 1, rate, places, noise)
    released = dp.SelfComposedDpEvent(step, steps)
    theirs = PLDAccountant(value_discretization_interval=1e-3).compose(released)
    assert pld <= theirs.get_epsilon(delta) * 1.001
    # Chua et al. (2024): delta of Poisson sampling, and what cutting adds to it.
    losses = LossDistribution(**event, overflow=p)
    epsilons = np.array([0.5 * pld, pld, 2 * pld])
    tail = stats.binom.sf(places, size + 1, rate)
    added = (1 + np.exp(epsilons)) * steps * tail
    usual = LossDistribution(**event).profile(epsilons).deltas
    assert (losses.profile(epsilons).deltas <= usual + added + 1e-12).all()


def test_the_size_that_is_taken_costs_a_hundredth_of_delta():
    delta = 7.4e-6
    given = {"dataset_size": 67_349, "sampling_rate": 1024 / 67_349}
    size = fitting_size(**given, steps=195, delta=delta)
    at, below = (195 * overflow(**given, max_batch=m) for m in (size, size - 1))
    assert at <= SHARE * delta < below
    assert overflow(**given, max_batch=size) == pytest.approx(
        stats.binom.sf(size - 1, 67_349, 1024 / 67_349), rel=1e-6
    )
    event = {"sampling_rate": given["sampling_rate"], "noise_multiplier": 0.76, "steps": 195}
    for epsilon in (epsilon_pld, epsilon_rdp):
        cut = epsilon(**event, delta=delta, overflow=overflow(**given, max_batch=size))
        assert epsilon(**event, delta=delta) < cut < 1.005 * epsilon(**event, delta=delta)
    assert fitting_size(dataset_size=10, sampling_rate=0.9, steps=5, delta=1e-3) == 11
    assert overflow(dataset_size=10, sampling_rate=0.9, max_batch=11) == 0


def test_renyi_dp_takes_the_cuts_of_all_steps_off_delta():
    """A hundred steps that are cut with probability 9e-8 each leave a tenth of 1e-5."""
    event = {"sampling_rate": 0.02, "noise_multiplier": 1.0, "steps": 100}
    cut = epsilon_rdp(**event, delta=1e-5, overflow=9e-8)
    assert cut == pytest.approx(epsilon_rdp(**event, delta=1e-6), rel=1e-9)
    assert cut > 1.2 * epsilon_rdp(**event, delta=1e-5)


MECHANISM = Mechanism(6, 3, 2000, 1.0, (1.0,), 1e-3, "truncated_poisson", max_batch=3)


def test_batches_are_those_of_the_analysis():
    """Records of every batch, counted and compared with the enumeration; padded to one size."""
    sampler, seen = MECHANISM.sampler(b"key"), Counter()
    for step in range(MECHANISM.steps):
        batch = sampler.batch(step)
        assert len(batch) == 3
        real = tuple(index for index in batch if index != BLANK)
        assert batch == [*sorted(real), *[BLANK] * (3 - len(real))]
        seen[real] += 1
    expected = batches(6, 0.5, 3)
    assert set(seen) <= set(expected)
    far = sum((seen[b] - 2000 * w) ** 2 / (2000 * w) for b, w in expected.items())
    assert far < stats.chi2.isf(1e-6, len(expected) - 1)


def test_what_is_kept_of_a_full_batch_stays_what_it_is():
    """By words of the step's own: runs that exist repeat their batches with later code."""
    event = (1000, 64, 9, 1.0, (0.1,), 1e-5)
    cut = Mechanism(*event, "truncated_poisson", max_batch=8).sampler(b"key").batch(3)
    assert cut == [36, 61, 375, 391, 692, 785, 816, 827]
    assert set(cut) < set(Mechanism(*event).sampler(b"key").batch(3))


def test_sampler_and_accountants_have_one_size():
    p = overflow(dataset_size=6, sampling_rate=0.5, max_batch=3)
    spent = {"sampling_rate": 0.5, "noise_multiplier": 1.0, "overflow": p}
    assert MECHANISM.spent == spent
    assert MECHANISM.rdp_after(2000) == epsilon_rdp(**spent, steps=2000, delta=1e-3)
    assert (MECHANISM.to_dict()["max_batch"], MECHANISM.to_dict()["overflow"]) == (3, p)


def test_noise_is_calibrated_to_the_cut_samples():
    settings = {"dataset_size": 2000, "batch_size": 100, "steps": 30, "thresholds": (0.1,)}
    budget = {"delta": 1e-5, "target_epsilon": 3.0, "accountant": "rdp"}
    cut = Mechanism.calibrate(**settings, **budget, sampling="truncated_poisson", max_batch=110)
    assert 2.99 < cut.epsilons()["rdp"] <= 3.0
    assert cut.epsilons()["prv"] is None
    plain = Mechanism.calibrate(**settings, **budget)
    assert cut.noise_multiplier > 1.05 * plain.noise_multiplier


@pytest.mark.parametrize("changes", [{"sampling": "poisson"}, {"max_batch": 0}, {"max_batch": 8}])
def test_sizes_that_mean_nothing_are_refused(changes):
    with pytest.raises(ValueError, match=r"privacy\.max_batch is"):
        dataclasses.replace(MECHANISM, **changes)
