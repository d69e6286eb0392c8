"""What a private selection costs, and what it guarantees."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.privacy.accounting import RDPCurve, run_curve
from dpft.privacy.guarantee import weakness
from dpft.sweep.selection import Trials, at_most, of_selection
from tests.privacy.test_guarantee import given as a_guarantee
from tests.privacy.test_guarantee import with_

ORDERS = np.concatenate([np.linspace(1.05, 10, 40), np.array([12.0, 16, 32, 64, 256, 1e4])])


def released(trials: Trials, outcomes: np.ndarray) -> np.ndarray:
    """What the best of K runs is, outcomes ordered from worst to best."""
    below, stop = np.concatenate([[0.0], np.cumsum(outcomes)]), 1 / trials.mean
    return np.diff(stop * below / (1 - (1 - stop) * below))  # E[x^K]


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """Renyi divergence of order ``order`` of p from q."""
    keep = p > 0
    terms = order * np.log(p[keep]) + (1 - order) * np.log(q[keep])
    peak = terms.max()
    return float((peak + np.log(np.exp(terms - peak).sum())) / (order - 1))


def curve_of(p: np.ndarray, q: np.ndarray) -> RDPCurve:
    rdp = [max(divergence(p, q, a), divergence(q, p, a)) for a in ORDERS]
    return RDPCurve(ORDERS, np.array(rdp))


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.tuples(st.floats(0.05, 1), st.floats(-0.7, 0.7)), min_size=2, max_size=6),
    mean=st.floats(1, 12.0),
)
def test_no_order_of_the_released_best_exceeds_its_bound(weights, mean):
    p = np.array([weight for weight, _ in weights])
    q = p * np.exp([shift for _, shift in weights])
    p, q = p / p.sum(), q / q.sum()
    trials = Trials(mean)
    bound = trials.cost(curve_of(p, q))
    best_p, best_q = released(trials, p), released(trials, q)
    for order, limit in zip(ORDERS, bound.rdp, strict=True):
        if order <= 64:  # beyond, rounding of the summed distribution is magnified
            exact = max(divergence(best_p, best_q, order), divergence(best_q, best_p, order))
            assert exact <= limit + 1e-6


def test_the_cost_is_that_of_theorem_2():
    """Papernot & Steinke 2022, at one order alone: both orders of the theorem are the same."""
    order, rdp, mean = 8.0, 0.3, 20.0
    expected = rdp + 2 * (1 - 1 / order) * rdp + 2 * math.log(mean) / order
    cost = Trials(mean).cost(RDPCurve(np.array([order]), np.array([rdp])))
    assert cost.rdp[0] == pytest.approx(expected + math.log(mean) / (order - 1), rel=1e-12)


def test_the_cost_grows_with_the_mean_from_that_of_one_run():
    run = run_curve(sampling_rate=0.02, noise_multiplier=0.8, steps=400)
    costs = [Trials(mean).cost(run).epsilon(1, 1e-5) for mean in (1.0, 2.0, 10.0, 100.0)]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(run.epsilon(1, 1e-5))
    assert costs[2] < run.epsilon(10, 1e-5)


def test_the_number_of_trials_follows_from_the_key_and_has_the_distribution():
    trials = Trials(5.0)
    drawn = [trials.draw(index.to_bytes(4, "big")) for index in range(4000)]
    assert drawn[:50] == [trials.draw(index.to_bytes(4, "big")) for index in range(50)]
    assert np.mean(drawn) == pytest.approx(5.0, rel=0.1)
    assert np.mean([k == 1 for k in drawn]) == pytest.approx(0.2, abs=0.03)


def test_candidates_are_bounded_by_the_worst_at_each_order():
    orders = np.array([2.0, 4.0])
    one, other = RDPCurve(orders, np.array([1.0, 5.0])), RDPCurve(orders, np.array([2.0, 3.0]))
    assert at_most([one, other]).rdp.tolist() == [2.0, 5.0]


def test_a_selection_states_its_own_price_and_keeps_what_voids_the_trial():
    trial = a_guarantee(noise_seed=7, caveats=["of the task"])
    chosen = of_selection(trial, epsilon=4.00001, delta=2e-5, size=1000, caveats=["of the choice"])
    assert (chosen.stated, chosen.accountant, chosen.delta) == (4.00001, "rdp", 2e-5)
    assert chosen.epsilon == {"pld": None, "rdp": 4.00001, "gdp_clt": None, "prv": None}
    assert chosen.statement.startswith("(4.001, 2e-05)-differential privacy by Renyi accounting, ")
    assert "the choice of the best of a random number of runs included" in chosen.statement
    assert chosen.caveats == ("of the task", "of the choice")
    assert chosen.voided_by == trial.voided_by
    assert chosen.not_covered[0].startswith("**Further search.**")
    assert trial.not_covered[0].startswith("**Hyperparameter search.**")
    trial = a_guarantee(with_(sampling="shuffle"), noise_seed=7)
    shuffled = of_selection(trial, epsilon=4.0, delta=2e-5, size=1000, caveats=["of the choice"])
    assert (shuffled.strength, shuffled.meaning) == ("none", "")
    assert shuffled.notes == (*trial.warnings, "of the choice")


@pytest.mark.parametrize(
    ("own", "remarks", "of_trial"), [(4.0, [], 12.0), (20.07, ["epsilon is 20.070"], 2.0)]
)
def test_a_selection_remarks_on_its_own_epsilon_and_delta(of_trial, own, remarks):
    trial = dataclasses.replace(
        a_guarantee(caveats=["of the task"]),
        stated=of_trial,
        caveats=(*weakness(of_trial), "of the task"),
    )
    found = of_selection(trial, epsilon=own, delta=1e-5, size=1000, caveats=[])
    *first, last = found.caveats
    assert [one[: len(start)] for one, start in zip(first, remarks, strict=True)] == remarks
    assert last == "of the task"
    large = of_selection(trial, epsilon=own, delta=2e-3, size=1000, caveats=[])
    assert "delta is 0.002 for 1,000 users: at 1/N" in str(large.caveats)
