"""Model cards say what was trained, and what is not covered."""

import pytest

from dpft.config.flags import Flag, flag
from dpft.report.card import model_card
from tests.runs.example import example_record, without_privacy

CONSTANT = {
    "metrics": {"accuracy": 0.6}, "examples": 5, "signature": "s", "distinct": 1,
    "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
}  # fmt: skip


@pytest.fixture
def record():
    return example_record()


def test_the_card_says_what_was_trained_and_what_is_not_covered(record):
    card = model_card(record)
    for said in (
        "(3, 8e-06)-differential privacy by Renyi accounting.",
        "| Unit of privacy | one meaning representation with one reference |",
        "| Neighbouring relation | add or remove one record |",
        "| Delta | 8e-06 |",
        "| Sampling | poisson, rate 0.0243 |",
        "| Noise multiplier | 0.8 |",
        "| Clipping threshold | 0.1, on the whole gradient |",
        "a secret key from the system's entropy",
        "| test | BLEU | 61.52 | 630 | e2e-metrics\\|v1 |",
        "Note: subset",
        "commit abc123 with uncommitted changes",
    ):
        assert said in card
    left_out = card.partition("### What is not covered")[2]
    assert "Hyperparameter search" in left_out
    assert "Two earlier runs on the same data were set aside." in left_out


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
