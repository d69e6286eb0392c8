"""What several private runs cost together."""

import pytest

from dpft.privacy.accounting import epsilon_rdp
from dpft.sweep.cost import composed, remarks

DELTA = 1e-5


def record(task="e2e", sigma=2.0, rate=0.1, steps=50, delta=DELTA, sampling="poisson"):
    mechanism = {
        "sampling_rate": rate,
        "noise_multiplier": sigma,
        "steps": steps,
        "delta": delta,
        "sampling": sampling,
    }
    each = epsilon_rdp(sampling_rate=rate, noise_multiplier=sigma, steps=steps, delta=delta)
    return {
        "dataset": {"task": task, "source": "files"},
        "training": {"steps": steps},
        "mechanism": mechanism,
        "privacy": {"unit": "a row", "epsilon": {"rdp": each}},
    }


def test_equal_runs_are_one_of_as_many_steps():
    together, delta = composed([record(), record(), record()])
    expected = epsilon_rdp(sampling_rate=0.1, noise_multiplier=2.0, steps=150, delta=DELTA)
    assert together == pytest.approx(expected, rel=1e-12)
    assert delta == DELTA


def test_unequal_runs_cost_more_than_each_and_less_than_the_sum():
    runs = [record(), record(sigma=1.0, rate=0.05), record(steps=10)]
    together, _ = composed(runs)
    each = [run["privacy"]["epsilon"]["rdp"] for run in runs]
    assert max(each) < together < sum(each)


def test_counts_behind_thresholds_are_part_of_it():
    adaptive = record()
    adaptive["mechanism"] |= {"total_noise_multiplier": 2.0, "noise_multiplier": 2.5}
    assert composed([adaptive]) == composed([record()])


def test_the_least_delta_is_told():
    assert composed([record(), record(delta=1e-6)])[1] == 1e-6


def test_a_remark_for_each_data_set_of_several_private_runs():
    public = record() | {"mechanism": None}
    untrained = record(steps=0)
    assert remarks([record(), public, untrained, record(task="sst2")]) == []
    said = remarks([record(), record(), record(task="sst2")])
    assert len(said) == 1
    assert said[0].startswith("2 runs were trained with privacy on e2e.")
    assert "run with shuffled batches" not in said[0]
    total = epsilon_rdp(sampling_rate=0.1, noise_multiplier=2.0, steps=100, delta=DELTA)
    assert f"epsilon {total + 0.0005:.3f}"[:-1] in said[0]
    assert "run with shuffled batches" in remarks([record(sampling="shuffle"), record()])[0]


def test_units_of_privacy_are_not_added_up():
    users = record()
    users["privacy"]["unit"] = "a user"
    assert remarks([record(), users]) == []


def test_a_search_over_what_is_spent_is_called_unproven():
    alike, unlike = [record(), record()], [record(), record(rate=0.05)]
    assert "not proven" not in remarks(alike, searched=True)[0]
    assert "not proven" not in remarks(unlike)[0]
    assert "is then not proven" in remarks(unlike, searched=True)[0]
