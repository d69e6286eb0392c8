"""What a run guarantees: decided once, by proven bounds, rounded to the safe side."""

import dataclasses
import math
import subprocess
import sys

import pytest

from dpft.privacy import Guarantee, Mechanism
from dpft.privacy import guarantee as module
from dpft.privacy.guarantee import guarantee, least_claim, meaning, strength
from dpft.privacy.rounding import delta, down, percent, up

MECHANISM = Mechanism(2000, 100, 30, 1.0, (0.1,), 1e-5)
REFUTED = {"refuted": True, "confidence": 0.95, "epsilon_lower": 9.98765}


def given(mechanism=MECHANISM, **facts):
    return guarantee(mechanism, noun="user", unit="all rows of one name", **facts)


def with_(**changes):
    return dataclasses.replace(MECHANISM, **changes)


def test_it_states_the_tightest_proven_bound_under_its_name():
    it = given()
    epsilon = MECHANISM.epsilons()
    assert (it.kind, it.private, it.epsilon) == ("private", True, epsilon)
    assert it.stated == epsilon["pld"] < epsilon["rdp"]
    assert it.statement == (
        f"({math.ceil(it.stated * 1000) / 1000:g}, 1e-05)-differential privacy by privacy loss "
        "distributions, for adding or removing one user; one user is all rows of one name"
    )
    assert it.neighbouring == "add or remove one user"
    assert it.meaning == meaning(it.stated, 1e-5, "user")


@pytest.mark.parametrize(
    ("mechanism", "kind", "private"),
    [
        (MECHANISM, "private", True),
        (with_(noise_multiplier=0.0), "none", False),
        (with_(noise_multiplier=0.0, thresholds=()), "none", False),
        (with_(steps=0), "nothing released", True),
        (with_(steps=0, noise_multiplier=0.0, thresholds=()), "nothing released", True),
    ],
)
def test_whether_a_run_is_private(mechanism, kind, private):
    it = given(mechanism, noise_seed=3, audit=REFUTED, caveats=["of the task"])
    assert (it.kind, it.private) == (kind, private)
    if kind == "private":
        return
    assert (it.strength, it.meaning, it.voided_by, it.caveats) == ("none", "", (), ())
    assert bool(it.figures()) is bool(it.not_covered) is private
    assert it.stated == (0.0 if private else None)


def test_what_voids_it_stands_above_the_figures_and_only_there():
    it = given(with_(sampling="shuffle"), noise_seed=7, audit=REFUTED)
    assert it.voided_by == ("refuted", "shuffled", "known seed")
    refuted, shuffled, seeded = it.warnings
    assert module.marked(3.0001, it.voided_by).startswith("3.001, refuted by an audit, not proven")
    assert "at least 9.987, more than" in refuted
    assert shuffled.startswith(module.SHUFFLED)
    assert "explicit seed 7" in seeded
    assert it.notes[:3] == it.warnings
    assert (it.strength, it.meaning) == ("none", "")
    assert "upper bound" not in str(it.figures())
    assert "not a bound here" in str(it.figures())
    # A known seed harms only against those who know it.
    assert given(noise_seed=7).meaning
    assert given(audit={**REFUTED, "refuted": False}).voided_by == ()


def test_repeated_steps_are_counted_and_a_caveat():
    plain, again = given(), given(with_(repeated=7))
    assert (plain.steps_taken, again.steps_taken) == (30, 37)
    assert again.stated == given(with_(steps=37)).stated > plain.stated
    (caveat,) = set(again.caveats) - set(plain.caveats)
    assert caveat.startswith("7 of the 37 noisy steps repeat earlier ones")
    assert ("Steps", "37") in again.figures()


def test_delta_and_few_units_are_caveats():
    assert given(caveats=["of the task"]).caveats == ("of the task",)
    assert "delta is 0.001 for 1,000 users: at 1/N" in given(with_(delta=1e-3), size=1000).notes[0]
    large = given(with_(delta=1 / 1998), size=999)
    assert "delta is 0.000501 for 999 users" in large.notes[0]
    assert large.strength == "weak"
    assert given(with_(delta=1e-4), size=64).notes == ()  # nothing large about it
    assert given(with_(delta=1e-3), size=1000).meaning.startswith("Delta is 1/N or more")
    assert given(size=1000).notes == ()


def test_it_survives_a_record():
    it = given(noise_seed=7, caveats=["x"])
    assert Guarantee.of_record({"privacy": it.to_dict()}) == it
    assert Guarantee.of_record({"privacy": given(with_(noise_multiplier=0.0)).to_dict()})


def test_an_audit_is_compared_with_a_bound_and_no_estimate():
    epsilon = {"rdp": 3.0, "gdp_clt": 1.0, "prv": {"lower": 1.5, "estimate": 2.0, "upper": 2.5}}
    assert least_claim(epsilon) == 2.5
    assert least_claim({**epsilon, "rdp": 2.2}) == 2.2
    assert least_claim({**epsilon, "pld": 2.1}) == 2.1
    infinite = {"pld": None, "rdp": math.inf, "gdp_clt": None, "prv": None}
    assert module.stated(infinite) is None
    assert least_claim(infinite) == math.inf  # which no audit refutes


@pytest.mark.parametrize(
    ("epsilon", "at", "size", "called"),
    [
        (3.0, 1 / 734, 367, "weak"),
        (1.0, 1e-5, 367, "strong"),
        (1.0, 1 / 84_122, 42_061, "reasonable"),
        (1.0, 1e-5, 20_000, "reasonable"),  # a fifth of 1/N
        (0.1, 1 / 42_061, 42_061, "none"),
    ],
)
def test_the_verdict_is_the_weaker_one_of_epsilon_and_delta(epsilon, at, size, called):
    assert strength(epsilon, at, size) == called


def test_a_sentence_on_epsilon_and_delta_has_both_and_the_verdict():
    it = dataclasses.replace(given(with_(delta=1 / 734), size=367), stated=3.0)
    assert it.verdict == (
        "Epsilon is at most 3.000 and delta 0.00137, 1 in 734, for each user: a weak bound."
    )


@pytest.mark.parametrize("epsilon", [0.001, 1.0, 2.9998, 8.0, 29.9])
def test_factor_and_chance_are_never_below_what_epsilon_allows(epsilon):
    text = meaning(epsilon, 1e-5, "record")
    factor = float(text.partition("at most ")[2].partition(" (e to")[0].replace(",", ""))
    sure = float(text.partition("can become at most ")[2].partition("% sure")[0])
    assert math.exp(epsilon) <= factor < 1.02 * math.exp(epsilon)
    exact = 100 / (1 + math.exp(-epsilon))
    assert exact - 1e-9 <= sure < exact + 0.02 * (100 - exact) + 1e-9
    assert sure <= 100


@pytest.mark.parametrize(
    ("epsilon", "called", "words"),
    [
        (1.0, "strong", "can hardly tell whether any one user was used"),
        (1.001, "reasonable", "is limited in telling whether any one user"),
        (10.0, "reasonable", "That is the worst case."),
        (10.001, "weak", "is limited in telling"),
        (30.001, "weak", "so loose that nothing follows"),
        (None, "none", "nothing is guaranteed"),
    ],
)
def test_how_much_an_epsilon_promises(epsilon, called, words):
    assert strength(epsilon, 1e-6, 1000) == called
    assert words in meaning(epsilon, 1.2301e-5, "user")
    assert bool(module.weakness(epsilon)) is (called == "weak")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 / (2 * 67349), "7.43e-06"),
        (8e-6, "8e-06"),
        (1e-5, "1e-05"),
        (0.9996, "1"),
        (0.00125, "0.00125"),
        (0.0012501, "0.00126"),
    ],
)
def test_delta_is_never_rounded_down(value, text):
    assert delta(value) == text


def test_bounds_are_rounded_to_the_safe_side():
    assert (up(2.99901), up(2.991, decimals=2), down(2.6109)) == ("3.000", "3.00", "2.610")
    assert (percent(0.95), percent(0.9995)) == ("95%", "99.95%")
    assert {f(x) for f in (up, down) for x in (None, math.inf)} == {"no finite number"}
    prv = {"lower": 2.3456, "estimate": 2.4, "upper": 2.4561}
    shown = dict(dataclasses.replace(given(), epsilon={"rdp": 3.0, "prv": prv}).figures())
    assert shown["Epsilon by PRV (estimate)"] == "2.4, bounds 2.345 to 2.457"


def test_the_guarantee_and_the_vocabulary_of_settings_need_no_torch():
    code = "import sys, dpft.privacy.guarantee, dpft.privacy.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
