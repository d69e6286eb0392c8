"""What is shown while a run trains, and to whom."""

import pytest

from dpft.privacy import Mechanism
from dpft.privacy.accounting import epsilon_gdp_clt, epsilon_pld
from dpft.training.progress import Progress

SUMMARY = {"loss": 6.43361, "dropped": 3}
SETTING = {"sampling_rate": 0.1, "noise_multiplier": 1.0, "delta": 1e-5}


def shown(capsys, sigma=1.0, steps=2, summary=SUMMARY):
    mechanism = Mechanism(100, 10, steps, sigma, (1.0,) if sigma else (), 1e-5)
    with Progress() as progress, progress.training(0, mechanism) as show:
        for step in range(steps):
            show(step, summary)
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.split())


def test_noiseless_figures_of_private_records_are_kept_out_of_log_files(capsys):
    said = shown(capsys)
    assert "step 2/2" in said
    for word in ("loss", "6.43", "dropped", "3"):
        assert word not in said.partition("eps")[2]


def test_without_noise_there_is_nothing_to_keep(capsys):
    assert "step 2/2 loss 6.434 dropped 3" in shown(capsys, sigma=0.0)
    assert "loss -" in shown(capsys, sigma=0.0, summary={"loss": None, "dropped": 0})


def test_who_looks_at_the_terminal_sees_the_loss(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes it one
    monkeypatch.setenv("COLUMNS", "200")
    assert "loss 6.434" in shown(capsys)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_epsilon_that_is_shown_is_the_proven_one_so_far(capsys, steps):
    said = shown(capsys, steps=steps)
    assert f"step {steps}/{steps} eps {epsilon_pld(steps=steps, **SETTING):.2f}" in said
    assert f"eps {epsilon_gdp_clt(steps=steps, **SETTING):.2f}" not in said
