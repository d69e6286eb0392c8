"""What is shown while a run trains, and to whom."""

import math

import pytest

from dpft.privacy import Mechanism
from dpft.privacy.accounting import epsilon_gdp_clt, epsilon_pld
from dpft.training.progress import Progress

SUMMARY = {"loss": 6.43361, "records": 8, "dropped": 3}
SETTING = {"sampling_rate": 0.1, "noise_multiplier": 1.0, "delta": 1e-5}


def shown(capsys, steps=2, verbosity="normal"):
    mechanism = Mechanism(100, 10, steps, 1.0, (1.0,), 1e-5)
    with Progress(verbosity=verbosity) as progress, progress.training(0, mechanism) as show:
        for step in range(steps):
            show(step, SUMMARY)
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


def test_noiseless_figures_of_private_records_are_kept_out_of_log_files(capsys):
    for verbosity, lines in (("normal", 1), ("steps", 2)):
        said = shown(capsys, verbosity=verbosity)
        assert (said.count("/2 eps"), "step 2/2" in said) == (lines, True)
        for word in ("loss", "6.43", "dropped"):
            assert word not in said
    with Progress(verbosity="quiet") as progress:
        progress.say("loading")
        progress.warn("careful")
    assert capsys.readouterr().err == "warning: careful\n"


def test_a_long_wait_says_after_two_seconds_how_long_the_rest_takes(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dpft.training.progress.time.monotonic", lambda: now[0])
    with Progress() as progress, progress.phase("predicting", 100) as advance:
        for now[0] in (1.0, 2.5, 3.0, 20.0):
            advance(10)
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == [
        "predicting 20/100  about 0:00:10 left",
        "predicting 40/100  about 0:00:30 left",
    ]


def test_who_looks_at_the_terminal_sees_the_loss(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes it one
    monkeypatch.setenv("COLUMNS", "200")
    assert "loss 6.434" in shown(capsys)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_epsilon_that_is_shown_is_the_proven_one_so_far(capsys, steps):
    said = shown(capsys, steps)
    shown_at_least = math.ceil(epsilon_pld(steps=steps, **SETTING) * 100) / 100
    assert f"step {steps}/{steps} eps {shown_at_least:.2f}" in said
    assert f"eps {epsilon_gdp_clt(steps=steps, **SETTING):.2f}" not in said
