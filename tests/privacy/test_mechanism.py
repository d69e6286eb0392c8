"""One frozen object decides sampling, noise and accounting."""

import dataclasses
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpft.privacy import Mechanism, accounting
from dpft.privacy.quantiles import Quantiles


def make(**changes):
    settings = {
        "dataset_size": 42061,
        "batch_size": 1024,
        "steps": 410,
        "thresholds": (0.1,),
        "delta": 1 / (2 * 42061),
        "target_epsilon": 3.0,
    }
    settings |= changes
    names = ("allocation", "dimensions", "quantiles", "quantile_budget", "count_noise")
    groups = {name: settings.pop(name) for name in names if name in settings}
    return Mechanism.calibrate(**settings).over(settings["thresholds"], **groups)


def test_calibration_spends_the_budget_and_no_more():
    mechanism = make()
    epsilons = mechanism.epsilons()
    assert 2.99 < epsilons["pld"] <= 3.0 < epsilons["rdp"]
    assert mechanism.rdp_after(410) == pytest.approx(epsilons["rdp"], rel=1e-9)
    assert mechanism.rdp_after(0) == 0
    assert mechanism.rdp_after(200) < epsilons["rdp"]
    assert 2.99 < make(accountant="rdp").epsilons()["rdp"] <= 3.0


def test_what_is_shown_while_training_ends_at_the_stated_epsilon_and_is_a_bound_before():
    mechanism = make()
    shown = [mechanism.epsilon_after(steps) for steps in (0, 1, 41, 100, 205, 409, 410)]
    assert shown == sorted(shown)
    assert shown[0] == 0
    assert shown[-1] == mechanism.epsilons()["pld"]
    for steps, epsilon in zip((41, 100, 205), shown[2:5], strict=True):
        assert epsilon >= mechanism.epsilons(steps)["pld"] - 1e-12
        assert epsilon <= mechanism.rdp_after(steps)
    short = make(steps=20)
    assert [short.epsilon_after(n) for n in (7, 8)] == [short.epsilons(n)["pld"] for n in (7, 8)]


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_other_accountants_find_the_stated_epsilon(sampling):
    """Of an adaptive run, whose counts are released too, with repeated steps."""
    mechanism = make(**ADAPTIVE | {"steps": 30, "sampling": sampling})
    mechanism = dataclasses.replace(mechanism, repeated=3)
    stated, at = mechanism.epsilons(), mechanism.delta
    noise = dp.GaussianDpEvent(mechanism.total_noise_multiplier)
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1024 / 42061, noise), 33)
    theirs = PLDAccountant(value_discretization_interval=1e-3).compose(event)
    assert theirs.get_epsilon(at) == pytest.approx(stated["pld"], rel=2e-3)
    theirs = RdpAccountant().compose(event)
    assert stated["rdp"] <= theirs.get_epsilon(at) < 1.02 * stated["rdp"]


@pytest.mark.parametrize("groups", [{}, {"quantiles": Quantiles(0.5), "quantile_budget": 0.1}])
def test_a_repeated_step_costs_a_further_one_and_changes_nothing_else(groups):
    run = Mechanism(1000, 100, 40, 1.1, (0.1,), 1e-5).over((0.1, 0.2), **groups)
    longer, again = dataclasses.replace(run, steps=47), dataclasses.replace(run, repeated=7)
    assert again.releases == 47
    assert again.epsilons() == longer.epsilons()
    assert again.epsilon_after(40) >= longer.epsilons()["pld"] - 1e-9
    assert again.rdp_after(40) == longer.rdp_after(47) > run.rdp_after(40)
    assert again.rdp_after(12) == run.rdp_after(19)
    assert again.noise_stds(again.first_thresholds) == run.noise_stds(run.first_thresholds)
    assert again.sampler(b"key").batch(39) == run.sampler(b"key").batch(39)


def test_no_noise_means_no_guarantee():
    mechanism = Mechanism(100, 10, 5, 0.0, (), 1e-3)
    assert not mechanism.private
    assert mechanism.sensitivity == math.inf
    assert mechanism.rdp_after(5) == math.inf
    assert mechanism.epsilons()["rdp"] == math.inf
    nothing = dataclasses.replace(mechanism, steps=0)
    assert nothing.private
    assert dataclasses.replace(mechanism, noise_multiplier=0.01, thresholds=(1.0,)).private
    assert nothing.epsilons()["rdp"] == 0


GROUPS = {"thresholds": (0.3, 0.02, 1.5), "dimensions": (1000, 20, 50_000)}


@pytest.mark.parametrize("allocation", ["global", "equal_budget", "weighted"])
def test_allocations_are_the_papers(allocation):
    """He et al. 2022, Algorithm 1, line 13; the weighted one from Appendix E."""
    mechanism = make(**GROUPS, allocation=allocation)
    C, d = np.array(GROUPS["thresholds"]), np.array(GROUPS["dimensions"])
    gamma = {"global": np.ones(3), "equal_budget": C, "weighted": C / np.sqrt(d)}[allocation]
    stds = np.array(mechanism.noise_stds(GROUPS["thresholds"]))
    sigma = mechanism.noise_multiplier
    np.testing.assert_allclose(stds, sigma * np.sqrt((C**2 / gamma**2).sum()) * gamma, rtol=1e-12)
    # Whatever the allocation, one record is hidden as well as by flat clipping.
    assert np.sum((C / stds) ** 2) == pytest.approx(sigma**-2, rel=1e-12)
    volume = np.sum(d * (stds / sigma) ** 2)  # the total noise, as the paper gives it
    expected = {
        "global": np.sum(C**2) * np.sum(d),
        "equal_budget": 3 * np.sum(d * C**2),
        "weighted": np.sum(d) * np.sum(C**2),
    }[allocation]
    assert volume == pytest.approx(expected, rel=1e-12)


ADAPTIVE = {"thresholds": (0.01,) * 76, "quantiles": Quantiles(0.5), "quantile_budget": 0.01}


@pytest.mark.parametrize(("accountant", "budget"), [("rdp", 1e-4), ("pld", 0.01), ("rdp", 0.8)])
def test_gradients_and_counts_together_spend_exactly_the_target(accountant, budget):
    flat = make(accountant=accountant)
    mechanism = make(**ADAPTIVE | {"quantile_budget": budget}, accountant=accountant)
    total = mechanism.total_noise_multiplier
    assert flat.noise_multiplier <= total <= flat.noise_multiplier * (1 + 1e-12)
    assert mechanism.noise_multiplier > flat.noise_multiplier
    spent = mechanism.epsilons()[accountant]
    assert flat.epsilons()[accountant] * (1 - 1e-6) <= spent <= 3.0
    assert mechanism.rdp_after(410) == pytest.approx(mechanism.epsilons()["rdp"], rel=1e-9)


def test_count_noise_given_leaves_the_rest_to_gradients():
    sigma = make().noise_multiplier
    mechanism = make(**ADAPTIVE | {"quantile_budget": None}, count_noise=20.0)
    assert mechanism.noise_multiplier == pytest.approx((sigma**-2 - 76 / 40**2) ** -0.5)
    with pytest.raises(ValueError, match="76 groups would spend the whole budget"):
        make(**ADAPTIVE | {"quantile_budget": None}, count_noise=4.0)


@pytest.mark.parametrize("rate", [0.05, 1.0])
def test_the_joint_release_has_the_renyi_divergence_that_is_accounted_for(rate):
    """By quadrature over the joint release itself: one gradient coordinate and two counts.

    With and without one record: a mixture of shifted Gaussians against the unshifted one. Nothing
    here knows of Proposition 3.1.
    """
    C, sigma_new, sigma_b = 0.37, 1.6, 1.1
    mechanism = Mechanism(
        *(1000, round(1000 * rate), 1, sigma_new, (C, C), 1e-5),
        quantiles=Quantiles(0.5),
        count_noise=sigma_b,
    )
    shift = np.array([math.sqrt(2) * C, 0.5, -0.5])  # a record at both thresholds, counts and all
    stds = np.array([mechanism.noise_stds((C, C))[0], sigma_b, sigma_b])
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    z = np.stack(np.meshgrid(points, points, points, indexing="ij"), -1)
    w = weights[:, None, None] * weights[:, None] * weights / (2 * math.pi) ** 1.5
    mu = shift / stds
    ratio = 1 - rate + rate * np.exp(z @ mu - mu @ mu / 2)
    curve = accounting.rdp_curve(
        sampling_rate=rate, noise_multiplier=mechanism.total_noise_multiplier
    )
    for order in (2, 3, 5, 8):
        divergence = math.log(np.sum(w * ratio**order)) / (order - 1)
        assert curve.rdp[list(curve.orders).index(order)] == pytest.approx(divergence, rel=1e-9)


def test_adaptive_mechanisms_say_all_that_ran():
    stated = make(**ADAPTIVE, dimensions=(1000,) * 76).to_dict()
    assert stated["groups"] == 76
    assert stated["quantiles"] == {"target": 0.5, "learning_rate": 0.3, "rescale": None}
    assert stated["count_noise"] > 0
    again = accounting.epsilon_pld(
        sampling_rate=stated["sampling_rate"],
        noise_multiplier=stated["total_noise_multiplier"],
        steps=stated["steps"],
        delta=stated["delta"],
    )
    assert 2.99 < again <= 3.0
    rescaled = make(**ADAPTIVE | {"quantiles": Quantiles(0.5, rescale=1.0)})
    assert rescaled.sensitivity == pytest.approx(1.0)
    assert rescaled.to_dict()["noise_std"] == pytest.approx(rescaled.noise_multiplier)
    weighted = make(**GROUPS, allocation="weighted").to_dict()
    assert weighted["noise_std"] is None
    assert len(weighted["noise_stds"]) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 50_000}, r"50000 for 42061 training records.*optim\.batch_size=8192"),
        ({"batch_size": 0}, "expected between 1 and 42061"),
        ({"dataset_size": 0}, "training set is empty"),
        ({"delta": 1.0}, "delta"),
        ({"target_epsilon": -1.0}, "epsilon"),
        ({"thresholds": ()}, "unbounded"),
        ({"sampling": "poison"}, "'poison'.*poisson"),
        ({"allocation": "globl"}, "'globl'; expected one of global"),
        ({"allocation": "weighted"}, "divides by their roots"),
        ({"allocation": "weighted", "dimensions": (0,)}, "divides by their roots"),
        ({"dimensions": (1, 2)}, "2 dimensions for 1 thresholds"),
        ({"quantiles": Quantiles(0.5)}, "expected one of them"),
        ({"quantile_budget": 0.1}, "thresholds are fixed"),
        ({"count_noise": 3.0}, "thresholds are fixed"),
    ],
)
def test_impossible_mechanisms_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_noise_that_protects_no_record_is_refused():
    for noise in (math.nan, -1.0):
        with pytest.raises(ValueError, match="expected"):
            Mechanism(100, 10, 5, noise, (1.0,), 1e-5)
    counted = {"quantiles": Quantiles(0.5)}
    for noise in (None, 0.0, math.inf):
        with pytest.raises(ValueError, match="protect no record"):
            Mechanism(100, 10, 5, 1.0, (0.1,), 1e-3, **counted, count_noise=noise)


@pytest.mark.parametrize(("share", "sampling"), [(1.0, "poisson"), (50.0, "truncated_poisson")])
def test_a_delta_that_allows_a_step_without_noise_is_refused_at_once(share, sampling):
    """A step without noise is (0, q)-DP, so that no noise would be the least noise."""
    settings = {"dataset_size": 1000, "batch_size": 10, "steps": 1, "sampling": sampling}
    with pytest.raises(ValueError, match=r"probability 0\.01; expected a smaller delta"):
        make(**settings, delta=share * 10 / 1000)
    just_below = make(**settings | {"sampling": "poisson"}, delta=0.0099, accountant="rdp")
    assert just_below.noise_multiplier > 0.1


def test_steps_follow_from_epochs_where_none_are_given():
    run = {"dataset_size": 105, "batch_size": 10, "thresholds": (1.0,), "delta": 1e-5}
    assert Mechanism.calibrate(**run, epochs=2.5, noise_multiplier=1.0).steps == 25
    assert Mechanism.calibrate(**run, epochs=2.5, steps=7, noise_multiplier=1.0).steps == 7
