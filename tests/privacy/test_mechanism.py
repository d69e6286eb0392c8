"""One frozen object decides sampling, noise and accounting."""

import dataclasses
import math

import pytest

from dpft.privacy import Mechanism, accounting


def make(**changes):
    settings = {
        "dataset_size": 42061,
        "batch_size": 1024,
        "steps": 410,
        "thresholds": (0.1,),
        "delta": 1 / (2 * 42061),
        "target_epsilon": 3.0,
    }
    return Mechanism.calibrate(**(settings | changes))


def test_calibration_spends_the_budget_and_no_more():
    mechanism = make()
    epsilon = mechanism.epsilons()["rdp"]
    assert 2.99 < epsilon <= 3.0
    assert mechanism.epsilon_after(410) == pytest.approx(epsilon, rel=1e-9)
    assert mechanism.epsilon_after(0) == 0
    assert mechanism.epsilon_after(200) < epsilon


def test_noise_scales_with_the_sensitivity_over_groups():
    mechanism = dataclasses.replace(make(), thresholds=(0.3, 0.4))
    assert mechanism.sensitivity == pytest.approx(0.5)
    assert mechanism.noise_std == pytest.approx(0.5 * mechanism.noise_multiplier)


def test_the_mechanism_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().noise_multiplier = 0.1


def test_no_noise_means_no_guarantee():
    mechanism = Mechanism(100, 10, 5, 0.0, (), 1e-3)
    assert not mechanism.private
    assert mechanism.sensitivity == math.inf
    assert mechanism.epsilon_after(5) == math.inf
    assert mechanism.epsilons()["rdp"] == math.inf


def test_a_run_of_no_steps_spends_nothing():
    mechanism = Mechanism(100, 10, 0, 0.0, (), 1e-3)
    assert mechanism.private
    assert mechanism.epsilons()["rdp"] == 0


def test_the_written_form_says_all_that_ran():
    stated = make().to_dict()
    assert stated["sampling_rate"] == 1024 / 42061
    assert stated["sensitivity"] == 0.1
    assert stated["noise_std"] == stated["noise_multiplier"] * 0.1
    again = accounting.epsilon_rdp(
        sampling_rate=stated["sampling_rate"],
        noise_multiplier=stated["noise_multiplier"],
        steps=stated["steps"],
        delta=stated["delta"],
    )
    assert again <= 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 50_000}, "50000 for 42061 training records"),
        ({"batch_size": 0}, "expected between 1 and 42061"),
        ({"dataset_size": 0}, "training set is empty"),
        ({"delta": 1.0}, "delta"),
        ({"target_epsilon": -1.0}, "epsilon"),
        ({"target_epsilon": 1e-9}, "epsilon"),
        ({"thresholds": ()}, "clipping threshold"),
        ({"sampling": "poison"}, "'poison'.*poisson"),
    ],
)
def test_impossible_mechanisms_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)
