"""What is shown while a run trains, and to whom."""

import math

import pytest

from dpft.privacy import Mechanism
from dpft.privacy.accounting import epsilon_gdp_clt, epsilon_pld
from dpft.training.progress import Progress, caution_of

SUMMARY = {"loss": 6.43361, "records": 8, "dropped": 3}
SETTING = {"sampling_rate": 0.1, "noise_multiplier": 1.0, "delta": 1e-5}


def shown(capsys, sigma=1.0, steps=2, summary=SUMMARY, verbosity="normal", sampling="poisson"):
    mechanism = Mechanism(100, 10, steps, sigma, (1.0,) if sigma else (), 1e-5, sampling)
    with Progress(verbosity=verbosity) as progress, progress.training(0, mechanism) as show:
        for step in range(steps):
            show(step, summary)
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


def test_noiseless_figures_of_private_records_are_kept_out_of_log_files(capsys):
    for dropped in (3, 8):  # of 8: none would have been learned from
        said = shown(capsys, summary=SUMMARY | {"dropped": dropped})
        assert "step 2/2" in said
        for word in ("loss", "6.43", "dropped", str(dropped)):
            assert word not in said.partition("eps")[2]


def test_a_line_for_each_step_tells_no_more_of_it_and_quiet_is_quiet(capsys):
    said = shown(capsys, steps=3, verbosity="steps")
    assert [f"step {step}/3" in said for step in (1, 2, 3)] == [True] * 3
    assert "loss" not in said
    with Progress(verbosity="quiet") as progress:
        progress.say("loading")
        progress.warn("careful")
    assert capsys.readouterr().err == "warning: careful\n"


def test_who_looks_at_the_terminal_sees_the_loss(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes it one
    monkeypatch.setenv("COLUMNS", "200")
    assert "loss 6.434" in shown(capsys)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_epsilon_that_is_shown_is_the_proven_one_so_far(capsys, steps):
    said = shown(capsys, steps=steps)
    shown_at_least = math.ceil(epsilon_pld(steps=steps, **SETTING) * 100) / 100
    assert f"step {steps}/{steps} eps {shown_at_least:.2f}" in said
    assert f"eps {epsilon_gdp_clt(steps=steps, **SETTING):.2f}" not in said


def steps(losses, dropped=0):
    return [{"loss": loss, "records": 4, "dropped": dropped} for loss in losses]


@pytest.mark.parametrize(
    ("course", "said"),
    [
        ([], None),
        (steps([1.0]), None),
        (steps([0.7] * 10 + [0.69] * 10), None),
        (steps([0.7] * 10 + [2.2] * 10), "the mean loss rose from 0.700 to 2.200"),
        (steps([1.0] * 10 + [None] * 10), None),
        (steps([1.0] * 10) + steps([None] * 10, dropped=4), "none of the 8 records"),
    ],
)
def test_training_that_went_nowhere_is_told(course, said):
    caution = caution_of(course)
    assert caution is None if said is None else caution.startswith(said)
