from typing import Any

import pytest
import yaml

from dpft.config.flags import Flag, flag
from dpft.privacy.guarantee import APPROXIMATION
from dpft.report.card import ModelFacts, model_card
from dpft.report.guarantee import SCALES
from tests.runs.example import example_record, without_privacy

CONSTANT = {
    "metrics": {"accuracy": 0.6}, "examples": 5, "signature": "s", "distinct": 1,
    "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
}  # fmt: skip


@pytest.fixture
def record() -> dict[str, Any]:
    return example_record()


def test_the_card_says_what_was_trained_and_what_is_not_covered(record: dict[str, Any]) -> None:
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
        "Mind: subset",
        "commit abc123 with uncommitted changes",
    ):
        assert said in card
    left_out = card.partition("### What is not covered")[2]
    assert "Hyperparameter search" in left_out
    assert "Two earlier runs on the same data were set aside." in left_out


def test_upper_bounds_round_up_and_lower_bounds_down(record: dict[str, Any]) -> None:
    card = model_card(record)
    assert "| Epsilon by RDP (upper bound) | 3.000 |" in card
    assert "| Epsilon by PRV (upper bound for removal; for addition unproven) | 2.650 |" in card
    assert "bounds 2.610 to 2.650" in card
    assert f"| Epsilon by GDP-CLT ({APPROXIMATION}) | 2.7 |" in card


def test_the_card_of_an_adapter_says_how_it_is_put_on_its_base(record: dict[str, Any]) -> None:
    record["model"]["pipeline"] = "text-classification"
    card = model_card(record, ModelFacts("ann/base", "ann/base", ("no", "yes")))
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["base_model"], head["base_model_relation"]) == ("ann/base", "adapter")
    assert (head["library_name"], head["pipeline_tag"]) == ("peft", "text-classification")
    assert "- Classes, in the order of its outputs: no, yes\n" in card
    assert 'ModelForSequenceClassification.from_pretrained("FOLDER", num_labels=2, ' in card


def test_scores_of_held_out_records_are_not_covered(record: dict[str, Any]) -> None:
    assert "held out" not in model_card(record)
    said = "Publish them only if those records may be spoken about"
    flags = [flag(Flag.HELD_OUT, split="test", share=0.1, noun="record")]
    assert said in model_card({**record, "flags": flags}).partition("## Scores")[2]
    # Whatever the flags say.
    record["config"] = {"task": {"name": "own", "test_share": 0.1}}
    assert said in model_card(record).partition("## Scores")[2]


def test_a_base_trained_before_may_have_seen_what_is_scored(record: dict[str, Any]) -> None:
    """With another split of the same data it has; the splits of published sets stay apart."""
    said = "the base was trained before. If that was on the same data with another split"
    flags = [flag(Flag.TRAINED_ON_UNKNOWN)]
    ours = {**record, "dataset": {**record["dataset"], "task": "text2text"}}
    assert said in model_card({**ours, "flags": flags}).partition("## Scores")[2]
    assert said not in model_card(ours)
    assert said not in model_card({**record, "flags": flags})
    assert said not in model_card({**ours, "flags": flags, "scores": {}})


def test_warnings_stand_above_the_statement(record: dict[str, Any]) -> None:
    record["privacy"]["warnings"] = ["Do not release this model."]
    record["seeds"]["noise"] = 0
    card = model_card(record)
    statement = card.index(record["privacy"]["statement"])
    assert card.index("> **Warning:** Do not release this model.") < statement
    assert "explicit seed 0 (no secret" in card


def test_a_run_without_noise_has_no_guarantee(record: dict[str, Any]) -> None:
    record |= {"mechanism": None, "privacy": without_privacy()}
    card = model_card(record)
    assert "> **No privacy guarantee: trained without noise" in card
    for absent in ("differential-privacy", "Epsilon", "### What is not covered"):
        assert absent not in card


def test_adaptive_thresholds_and_their_cost_are_told(record: dict[str, Any]) -> None:
    record["config"]["clip"] = {"groups": "per_layer", "thresholds": [0.1] * 149}
    record["mechanism"].update(
        thresholds=[0.01] * 149,
        groups=149,
        allocation="weighted",
        quantiles={"target": 0.5, "learning_rate": 0.3, "rescale": 1.0},
        count_noise=50.0,
        total_noise_multiplier=0.79,
    )
    card = model_card(record)
    for said in (
        "| Noise multiplier | 0.79 in all: 0.8 on gradients, and noise of standard deviation 50 on "
        "149 counts a step, which move the thresholds. Epsilon includes both |",
        "| Clipping threshold | adaptive: the private 0.5-quantile of each group's norms, scaled "
        "to 1 together; estimates begin at 0.01 |",
        "| Clipping groups | 149 (per_layer) |",
        "| Noise allocation | weighted |",
        "thresholds=a list of 149",
    ):
        assert said in card
    assert "0.1, 0.1" not in card


def test_what_a_record_quotes_is_no_html(record: dict[str, Any]) -> None:
    record["flags"] = [flag(Flag.NOTE, text="<img src=x onerror=alert(1)>")]
    record["privacy"]["caveats"] = ["<script>alert(1)</script>"]
    card = model_card(record)
    assert " <img" not in card
    assert " <script" not in card
    assert "\\<script>alert(1)\\</script>" in card


def test_a_model_that_learned_nothing_is_told_on_its_card(record: dict[str, Any]) -> None:
    record["scores"] = {"test": CONSTANT}
    scores = model_card(record).partition("## Scores")[2]
    assert "**Mind:** test: all 5 answers are the same, 'yes'" in scores
    assert "Always the most frequent class: accuracy 0.6 (test)." in scores
    assert "True class no (test) was answered: yes 2." in scores


def test_a_threshold_that_only_scales_is_called_so(record: dict[str, Any]) -> None:
    for function in ("abadi", "automatic"):
        record["config"]["clip"]["clip_function"] = function
        assert (SCALES in model_card(record)) is (function == "automatic")
