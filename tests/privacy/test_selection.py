"""Private selection against the exact distribution of the best of a random number of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.privacy.accounting import RDPCurve, composed, run_curve
from dpft.privacy.accounting.selection import Trials, at_most

ORDERS = np.concatenate([np.linspace(1.05, 10, 40), np.array([12.0, 16, 32, 64, 256, 1e4])])
SHAPES = (-0.5, 0.0, 0.5, 1.0, 3.0, math.inf)


def generating(trials: Trials, x: np.ndarray) -> np.ndarray:
    """``E[x^K]``, summed term by term from the probabilities."""
    start = 0 if trials.poisson else 1
    total = np.zeros_like(x)
    for k in range(start, 2500):
        total += math.exp(trials.log_probability(k)) * x**k
    return total


def released(trials: Trials, outcomes: np.ndarray) -> np.ndarray:
    """What the best of K runs is, outcomes ordered from worst to best; first entry: nothing."""
    below = np.concatenate([[0.0], np.cumsum(outcomes)])
    cumulative = generating(trials, np.minimum(below, 1.0))
    return np.concatenate([cumulative[:1], np.diff(cumulative)])


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """Renyi divergence of order ``order`` of p from q."""
    keep = p > 0
    terms = order * np.log(p[keep]) + (1 - order) * np.log(q[keep])
    peak = terms.max()
    return float((peak + np.log(np.exp(terms - peak).sum())) / (order - 1))


def curve_of(p: np.ndarray, q: np.ndarray) -> RDPCurve:
    rdp = [max(divergence(p, q, a), divergence(q, p, a)) for a in ORDERS]
    return RDPCurve(ORDERS, np.array(rdp))


@pytest.mark.parametrize(
    ("shape", "mean"), [(-0.5, 10.0), (0.0, 1.5), (1.0, 1.0), (3.0, 10.0), (math.inf, 1.5)]
)
def test_probabilities_sum_to_one_and_have_the_mean(shape: float, mean: float) -> None:
    trials = Trials(mean, shape)
    probabilities = np.array([math.exp(trials.log_probability(k)) for k in range(6000)])

    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    assert probabilities @ np.arange(6000) == pytest.approx(mean, rel=1e-6)


def test_pure_privacy_costs_three_times_with_a_geometric_number() -> None:
    """Liu & Talwar 2019; (2 + eta) epsilon for eta in general (Papernot & Steinke, Corollary 3)."""
    pure = RDPCurve(np.array([1e8]), np.array([0.7]))

    for shape in (0.0, 0.5, 1.0, 2.0):
        cost = Trials(mean=1000.0, shape=shape).cost(pure)
        assert cost.rdp[0] == pytest.approx((2 + shape) * 0.7, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.tuples(st.floats(0.05, 1), st.floats(-0.7, 0.7)), min_size=2, max_size=6),
    shape=st.sampled_from(SHAPES),
    mean=st.floats(0.05, 12.0),
)
def test_no_order_of_the_released_best_exceeds_its_bound(
    weights: list[tuple[float, float]], shape: float, mean: float
) -> None:
    p = np.array([weight for weight, _ in weights])
    q = p * np.exp([shift for _, shift in weights])
    p, q = p / p.sum(), q / q.sum()
    trials = Trials(mean if math.isinf(shape) else max(mean, 1.0), shape)
    bound = trials.cost(curve_of(p, q))
    best_p, best_q = released(trials, p), released(trials, q)
    if not trials.poisson:
        best_p, best_q = best_p[1:], best_q[1:]
    for order, limit in zip(ORDERS, bound.rdp, strict=True):
        if order <= 64:  # beyond, rounding of the summed distribution is magnified
            exact = max(divergence(best_p, best_q, order), divergence(best_q, best_p, order))
            assert exact <= limit + 1e-6


@pytest.mark.parametrize("mean", [0.1, 0.5])
def test_a_number_of_trials_that_is_mostly_none_is_not_free(mean: float) -> None:
    """Nothing is released most of the time; whenever something is, it is a whole run."""
    p, q = np.array([0.9, 0.1]), np.array([0.3, 0.7])
    trials = Trials(mean, math.inf)
    bound = trials.cost(curve_of(p, q))
    best_p, best_q = released(trials, p), released(trials, q)
    for order, limit in zip(ORDERS[:40], bound.rdp[:40], strict=True):
        assert 0 < divergence(best_q, best_p, order) <= limit + 1e-9


@pytest.mark.parametrize("mean", [5.0, 20.0])
def test_what_one_run_shows_rarely_the_best_of_many_shows_more_often(mean: float) -> None:
    """A geometric number of runs: the best is a certain one with b / (b + gamma (1 - b))."""
    p, q = np.array([1 - 1e-2, 1e-2]), np.array([1 - 1e-30, 1e-30])
    trials = Trials(mean, shape=1.0)
    best_p, best_q = (
        np.array([1 - top, top]) for top in (x[1] / (x[1] + trials.gamma * x[0]) for x in (p, q))
    )
    assert best_p[1] > 0.8 * mean * p[1]
    bound = trials.cost(curve_of(p, q)).rdp
    for order, limit in zip(ORDERS[ORDERS <= 64], bound, strict=False):
        exact = max(divergence(best_p, best_q, order), divergence(best_q, best_p, order))
        assert exact <= limit


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.5, 1.0, 3.0])
def test_the_cost_is_that_of_theorem_2(shape: float) -> None:
    """Papernot & Steinke 2022, at one order alone: both orders of the theorem are the same."""
    order, rdp, mean = 8.0, 0.3, 20.0
    trials = Trials(mean, shape)
    expected = (
        rdp
        + (1 + shape) * (1 - 1 / order) * rdp
        + (1 + shape) * math.log(1 / trials.gamma) / order
        + math.log(mean) / (order - 1)
    )
    cost = trials.cost(RDPCurve(np.array([order]), np.array([rdp])))
    assert cost.rdp[0] == pytest.approx(expected, rel=1e-12)


def test_the_cost_of_a_poisson_number_is_that_of_theorem_6() -> None:
    """Beside which nothing may be released, with probability exp(-mean)."""
    orders, rdp, mean = np.array([4.0, 60.0]), np.array([0.02, 0.3]), 5.0
    cost = Trials(mean, math.inf).cost(RDPCurve(orders, rdp))
    for order, own, found in zip(orders, rdp, cost.rdp, strict=True):
        # delta of the run at epsilon = log(1 + 1 / (order - 1)), by its better order
        least = min(
            math.exp((a - 1) * (r + math.log1p(-1 / a) - math.log1p(1 / (order - 1)))) / a
            for a, r in zip(orders, rdp, strict=True)
        )
        best = own + mean * min(least, 1.0) + math.log(mean) / (order - 1)
        moment = math.exp((order - 1) * best) + math.exp(-mean)
        assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-9)


def test_cost_grows_with_mean_and_stays_below_that_of_all_runs() -> None:
    run = run_curve(sampling_rate=0.02, noise_multiplier=0.8, steps=400)
    costs = [Trials(mean).cost(run).epsilon(1, 1e-5) for mean in (1.0, 2.0, 10.0, 100.0)]

    assert costs == sorted(costs)
    assert costs[2] < composed([run] * 10).epsilon(1, 1e-5)


def test_the_number_of_trials_follows_from_the_key_and_has_the_distribution() -> None:
    trials = Trials(mean=5.0, shape=0.0)
    drawn = [trials.draw(index.to_bytes(4, "big")) for index in range(4000)]

    assert drawn[:50] == [trials.draw(index.to_bytes(4, "big")) for index in range(50)]
    assert np.mean(drawn) == pytest.approx(5.0, rel=0.1)
    share = math.exp(trials.log_probability(1))
    assert np.mean([k == 1 for k in drawn]) == pytest.approx(share, abs=0.03)


def test_candidates_are_bounded_by_the_worst_at_each_order() -> None:
    orders = np.array([2.0, 4.0])
    one, other = RDPCurve(orders, np.array([1.0, 5.0])), RDPCurve(orders, np.array([2.0, 3.0]))

    assert at_most([one, other]).rdp.tolist() == [2.0, 5.0]
    assert composed([one, other]).rdp.tolist() == [3.0, 8.0]
    with pytest.raises(ValueError, match="different orders"):
        at_most([one, RDPCurve(np.array([2.0, 8.0]), one.rdp)])


@pytest.mark.parametrize(
    ("mean", "shape"), [(0.5, 1.0), (math.nan, 1.0), (3.0, -1.0), (0.0, math.inf), (1e6, -0.99)]
)
def test_impossible_distributions_are_refused(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        Trials(mean, shape)
