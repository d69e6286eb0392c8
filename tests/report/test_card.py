from typing import Any

import pytest

from dpft.config.flags import Flag, flag
from dpft.report.card import model_card
from tests.report.pages.example import record as example
from tests.runs.example import without_privacy

CONSTANT = {
    "metrics": {"accuracy": 0.6}, "examples": 5, "signature": "s", "distinct": 1,
    "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
}  # fmt: skip


@pytest.fixture
def record() -> dict[str, Any]:
    return example(bleu=61.519)


def test_the_card_says_what_was_trained_and_what_is_not_covered(record: dict[str, Any]) -> None:
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


def test_a_run_without_noise_has_no_guarantee(record: dict[str, Any]) -> None:
    record |= {"mechanism": None, "privacy": without_privacy()}
    card = model_card(record)
    assert "> **No privacy guarantee: trained without noise" in card
    for absent in ("differential-privacy", "Epsilon", "### What is not covered"):
        assert absent not in card


def test_what_a_record_quotes_is_no_html(record: dict[str, Any]) -> None:
    record["flags"] = [flag(Flag.NOTE, text="<img src=x onerror=alert(1)>")]
    record["privacy"]["caveats"] = ["<script>alert(1)</script>"]
    card = model_card(record)
    assert " <img" not in card
    assert " <script" not in card
    assert "\\<script>alert(1)\\</script>" in card


def test_the_card_names_a_model_that_learned_nothing(record: dict[str, Any]) -> None:
    record["scores"] = {"test": CONSTANT}
    scores = model_card(record).partition("## Scores")[2]
    assert "**Note:** test: all 5 answers are the same, 'yes'" in scores
    assert "Always answering the most frequent class: accuracy 0.6 (test)." in scores
    assert "True class no (test) was answered: yes 2." in scores
