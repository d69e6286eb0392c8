"""Model cards and tables of runs say what their records say, and what is not covered."""

from pathlib import Path

import pytest

from dpft.config.flags import Flag, flag
from dpft.privacy.guarantee import APPROXIMATION
from dpft.report.card import model_card
from dpft.report.comparison import row, show
from tests.report.pages import example
from tests.runs.example import example_guarantee, without_privacy

CONSTANT = {
    "metrics": {"accuracy": 0.6}, "examples": 5, "signature": "s", "distinct": 1,
    "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
}  # fmt: skip


@pytest.fixture
def record():
    return example.record(bleu=61.519)


def test_the_card_says_what_was_trained_and_what_is_not_covered(record):
    card = model_card(record)
    for said in (
        "(3, 1e-05)-differential privacy by Renyi accounting.",
        "| Unit of privacy | one row of the training file |",
        "| Neighbouring relation | add or remove one record |",
        "| Delta | 1e-05 |",
        "| Sampling | poisson, rate 0.0243 |",
        "| Noise multiplier | 0.7103 |",
        "| Clipping threshold | 0.1, on the whole gradient |",
        "a secret key from the system's entropy",
        "| test | BLEU | 61.52 | 630 | bleu\\|x |",
        "Note: bundled tiny model",
        "commit abc123 with uncommitted changes",
    ):
        assert said in card
    left_out = card.partition("### What is not covered")[2]
    assert "Hyperparameter search" in left_out
    assert "only 42 records" in left_out


def test_a_run_without_noise_has_no_guarantee(record):
    record |= {"mechanism": None, "privacy": without_privacy()}
    card = model_card(record)
    assert "> **No privacy guarantee: trained without noise" in card
    for absent in ("differential-privacy", "Epsilon", "### What is not covered"):
        assert absent not in card


def test_what_a_record_quotes_is_no_html(record):
    record["flags"] = [flag(Flag.NOTE, text="<img src=x onerror=alert(1)>")]
    record["privacy"]["caveats"] = ["<script>alert(1)</script>"]
    card = model_card(record)
    assert " <img" not in card
    assert " <script" not in card
    assert "\\<script>alert(1)\\</script>" in card


def test_the_card_names_a_model_that_learned_nothing(record):
    record["scores"] = {"test": CONSTANT}
    scores = model_card(record).partition("## Scores")[2]
    assert "**Note:** test: all 5 answers are the same, 'yes'" in scores
    assert "Always answering the most frequent class: accuracy 0.6 (test)." in scores
    assert "True class no (test) was answered: yes 2." in scores


PRIVATE = example.record(
    scores={"test": {"metrics": {"BLEU": 0.61234, "NIST": None}, "examples": 630}},
    privacy=example_guarantee(
        epsilon={"rdp": 2.9991, "gdp_clt": 2.32, "prv": {"estimate": 2.66, "upper": 2.6801}},
        warnings=["run with shuffled batches"],
        caveats=["few records"],
    ),
)
PLAIN = {**PRIVATE, "privacy": without_privacy()}


def shown(capsys, *runs):
    show(runs)
    return " ".join(capsys.readouterr().out.split())


def test_bounds_are_rounded_to_the_safe_side():
    """Upper bounds up, of PRV the upper one of its three, and an audit's lower bound down."""
    cells = row(Path("runs/a"), {**PRIVATE, "audit": {"epsilon_lower": 1.2999}})
    assert (cells["BLEU"], cells["NIST"], cells["instances"]) == ("0.6123", "-", "630")
    assert (cells["eps RDP"], cells["eps PRV"], cells["eps GDP-CLT"]) == ("3.000", "2.681", "2.320")
    assert cells["eps at least (audit)"] == "1.299"
    assert row(Path("a"), PLAIN)["eps RDP"] == "none"
    privacy = {**PRIVATE["privacy"], "epsilon": {"rdp": 5.2e7, "gdp_clt": None, "prv": None}}
    cells = row(Path("a"), {**PRIVATE, "privacy": privacy})
    assert (cells["eps RDP"], cells["eps PRV"], cells["eps GDP-CLT"]) == ("5.20e+07", "-", "-")


def test_labels_warnings_and_caveats_are_never_left_out(capsys):
    text = shown(capsys, (Path("runs/a"), PRIVATE), (Path("runs/b"), PLAIN))
    for said in (
        "bundled tiny model",
        "shuffled batches",
        "few records",
        "no privacy guarantee",
        "(3, 8e-06)",
        APPROXIMATION,
    ):
        assert said in text
    assert APPROXIMATION not in shown(capsys, (Path("runs/b"), PLAIN))


@pytest.mark.parametrize("width", [60, 81, 123])
def test_no_figure_loses_digits_where_many_runs_are_compared(capsys, monkeypatch, width):
    """Runs of different tasks, whose columns need different widths."""
    monkeypatch.setenv("COLUMNS", str(width))
    other = {**PRIVATE, "scores": {"test": {**CONSTANT, "metrics": {"perplexity": 41441.2503}}}}
    show([(Path(f"runs/lora-rank4-bk-eps{n}-s{n}"), (PRIVATE, other)[n % 2]) for n in range(6)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    cells = [cell for line in lines if line.startswith("  ") for cell in line.split()]
    assert cells.count("0.6123") == cells.count("41441.2503") == 3
    assert not any("…" in line for line in lines)
