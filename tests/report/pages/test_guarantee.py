"""The guarantee in words: by the proven epsilon, and never rounded to the flattering side."""

import math

import pytest

from dpft.report.pages.gather import Options, gather
from dpft.report.pages.guarantee import brief, guarantee, in_words
from dpft.report.pages.target import Target
from tests.report.pages.example import DELTA, Page, a_run, ledger, mechanism, record


def gathered(path):
    return gather(Target(path, path.name), Options(), 0)


def text_of(path):
    return Page(str(guarantee(gathered(path)))).text


def test_words_follow_from_the_epsilon_by_rdp(tmp_path):
    """Not from GDP-CLT's, which is smaller and no bound."""
    said = text_of(a_run(tmp_path / "run"))
    assert in_words(2.9998, DELTA, "record") in said
    assert in_words(2.32, DELTA, "record") not in said
    assert in_words(2.65, DELTA, "record") not in said


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.5, 1.0, 2.9998, 3.0, 5.0, 8.0, 29.9])
def test_factor_and_chance_are_never_below_what_epsilon_allows(epsilon):
    said = in_words(epsilon, 1e-5, "record")
    factor = float(said.partition("at most ")[2].partition(" (e to")[0].replace(",", ""))
    sure = float(said.partition("can become at most ")[2].partition("% sure")[0])
    assert math.exp(epsilon) <= factor < 1.02 * math.exp(epsilon)
    exact = 100 / (1 + math.exp(-epsilon))
    assert exact - 1e-9 <= sure < exact + 0.02 * (100 - exact) + 1e-9
    assert sure <= 100


def test_exact_words():
    assert "a factor of at most 2.72 (e to the power of epsilon)" in in_words(1.0, 1e-5, "user")
    assert "any one user was used" in in_words(1.0, 1e-5, "user")
    assert "can become at most 73.2% sure" in in_words(1.0, 1e-5, "user")
    assert "delta = 1.24e-05" in in_words(1.0, 1.2301e-5, "user")


@pytest.mark.parametrize(
    ("epsilon", "hardly", "little", "loose"),
    [
        (5.0, True, False, False),
        (5.001, False, True, False),
        (30.0, False, True, False),
        (30.001, False, False, True),
        (math.inf, False, False, True),
    ],
)
def test_a_large_epsilon_is_called_little_protection_and_then_none(epsilon, hardly, little, loose):
    said = in_words(epsilon, 1e-5, "record")
    assert ("can hardly tell" in said) is hardly
    assert ("is limited in telling" in said and "is little protection" in said) is little
    assert ("so loose that nothing follows" in said) is loose


def test_without_a_finite_epsilon_nothing_is_guaranteed():
    assert in_words(None, 1e-5, "record") == (
        "There is no finite epsilon, so nothing is guaranteed."
    )


def test_a_run_without_noise_says_so_and_nothing_else(tmp_path):
    path = a_run(tmp_path / "run", record(private=False))
    assert text_of(path).startswith("No privacy guarantee. This run was trained without noise")
    assert "psilon" not in text_of(path)
    assert brief(gathered(path)).startswith("No privacy guarantee")


def test_an_unfinished_run_tells_what_its_ledger_counts(tmp_path):
    path = a_run(tmp_path / "run")
    (path / "record.json").unlink()
    ledger(path, steps=3, mechanism=mechanism(target_epsilon=3.0))
    said = text_of(path)
    assert "So far 3 steps have spent epsilon 2.250 by Renyi accounting." in said
    assert "Steps in the ledger 3 of 4" in said
    assert "Delta 1e-05" in said
    assert "Epsilon in the end, at most 3.000" in said
    assert "Unit of privacy one row" in said
    assert "The run is not finished" in said


def test_shuffled_batches_have_a_caveat_and_no_words_of_protection(tmp_path):
    whole = record(mechanism=mechanism(sampling="shuffle"))
    said = text_of(a_run(tmp_path / "run", whole))
    assert "Epsilon computed for Poisson sampling, run with shuffled batches." in said
    assert "can hardly tell" not in said
    assert "upper bound" not in said
    assert "for Poisson sampling, not a bound here" in said


def test_every_figure_stands_under_its_accountant(tmp_path):
    said = text_of(a_run(tmp_path / "run"))
    for part in (
        "Epsilon by RDP (upper bound) 3.000",
        "Epsilon by PRV (upper bound for removal; for addition unproven) 2.700",
        "Epsilon by PRV (estimate) 2.65, bounds 2.600 to 2.700",
        "Epsilon by GDP-CLT (approximation, usually too small) 2.32",
        "Neighbouring data sets add or remove one record",
        "Steps 4",
        "Sampling poisson, rate 0.0243",
        "Noise multiplier 1.07",
        "Clipping one group; threshold fixed, 0.1",
        "One record is one row of the training file.",
        "Mind: only 42 records",
    ):
        assert part in said


def test_an_audit_stands_between_the_bounds_and_refutes_in_the_open(tmp_path):
    found = {"epsilon_lower": 3.4567, "confidence": 0.95, "refuted": True}
    said = text_of(a_run(tmp_path / "run", record(audit=found)))
    assert "An audit of this very run refutes the guarantee" in said
    assert "Epsilon spent at least, by an audit of this run 3.456 at 95% confidence" in said
    calm = text_of(a_run(tmp_path / "calm", record(audit={**found, "refuted": False})))
    assert "refutes" not in calm


def test_adaptive_thresholds_and_several_groups_are_described(tmp_path):
    whole = mechanism(
        quantiles={"target": 0.5, "learning_rate": 0.3, "rescale": None},
        count_noise=12.0,
        total_noise_multiplier=1.06,
        thresholds=[1.0, 2.0],
        groups=2,
    )
    said = text_of(a_run(tmp_path / "run", record(mechanism=whole)))
    assert "1.06 in all: 1.07 on gradients, and noise of standard deviation 12 on the" in said
    assert "Clipping 2 groups; threshold adaptive, from 1 to 2" in said
    without = record(mechanism=mechanism(thresholds=[]))
    assert "Clipping not recorded" in text_of(a_run(tmp_path / "without", without))


def test_the_explicit_seed_of_the_noise_is_warned_of(tmp_path):
    assert "explicit seed" not in text_of(a_run(tmp_path / "secret"))
    whole = record(seeds={"seed": 0, "noise": 0})
    assert "the noise came from an explicit seed" in text_of(a_run(tmp_path / "run", whole))


def test_a_run_of_no_steps_has_no_figures(tmp_path):
    whole = record()
    whole["privacy"] |= {"steps_taken": 0, "statement": "no training step was taken"}
    said = text_of(a_run(tmp_path / "run", whole))
    assert said.startswith("No training step was taken.")
    assert "Epsilon by RDP" not in said
