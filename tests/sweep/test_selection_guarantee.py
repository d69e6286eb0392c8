"""The guarantee of a run that was chosen among several with a price."""

import dataclasses

import pytest

from dpft.privacy.guarantee import weakness
from dpft.sweep.selection.release import of_selection
from tests.privacy.test_guarantee import given, with_


def test_a_selection_states_its_own_price_and_keeps_what_voids_the_trial():
    trial = given(noise_seed=7, caveats=["of the task"])
    chosen = of_selection(trial, epsilon=4.00001, delta=2e-5, size=1000, caveats=["of the choice"])
    assert (chosen.stated, chosen.accountant, chosen.delta) == (4.00001, "rdp", 2e-5)
    assert chosen.epsilon == {"pld": None, "rdp": 4.00001, "gdp_clt": None, "prv": None}
    assert chosen.statement.startswith("(4.001, 2e-05)-differential privacy by Renyi accounting, ")
    assert "the choice of the best of a random number of runs included" in chosen.statement
    assert chosen.caveats == ("of the task", "of the choice")
    assert chosen.voided_by == trial.voided_by
    assert chosen.not_covered[0].startswith("**Further search.**")
    assert trial.not_covered[0].startswith("**Hyperparameter search.**")
    trial = given(with_(sampling="shuffle"), noise_seed=7)
    shuffled = of_selection(trial, epsilon=4.0, delta=2e-5, size=1000, caveats=["of the choice"])
    assert (shuffled.strength, shuffled.meaning) == ("none", "")
    assert shuffled.notes == (*trial.warnings, "of the choice")


@pytest.mark.parametrize(
    ("own", "remarks", "of_trial"), [(4.0, [], 12.0), (20.07, ["epsilon is 20.070"], 2.0)]
)
def test_a_selection_remarks_on_its_own_epsilon_and_delta(of_trial, own, remarks):
    trial = dataclasses.replace(
        given(caveats=["of the task"]),
        stated=of_trial,
        caveats=(*weakness(of_trial), "of the task"),
    )
    found = of_selection(trial, epsilon=own, delta=1e-5, size=1000, caveats=[])
    *first, last = found.caveats
    assert [one[: len(start)] for one, start in zip(first, remarks, strict=True)] == remarks
    assert last == "of the task"
    large = of_selection(trial, epsilon=own, delta=2e-3, size=1000, caveats=[])
    assert "delta is 0.002 for 1,000 users: at 1/N" in str(large.caveats)
