"""DART's scores: jackknifed ROUGE by hand, raw text elsewhere, and weights or a reason."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
)

from dpft.tasks.metrics import gem, neural
from dpft.tasks.metrics.scorers import bleu
from tests.tasks.metrics.restaurants import PREDICTIONS, REFERENCES
from tests.tasks.objectives.encoders import wordpiece

lower_bleu = partial(bleu, lowercase=True)
# Printed by gem-metrics (commit 8162210, October 2022) for the corpus of `restaurants`.
OFFICIAL = {"BLEU": 37.4975, "METEOR": 0.3567471847}
OFFICIAL |= {"ROUGE_1": 54.915, "ROUGE_2": 33.828, "ROUGE_L": 41.894}


@pytest.mark.slow
def test_the_corpus_scores_as_officially() -> None:
    scores = gem.score(PREDICTIONS, REFERENCES)
    assert {name: scores[name] for name in OFFICIAL} == pytest.approx(OFFICIAL, abs=1e-3)
    assert scores["METEOR"] == pytest.approx(OFFICIAL["METEOR"], abs=1e-9)
    assert list(scores)[:1] + list(scores)[-2:] == ["BLEU", "BERTScore", "BLEURT"]
    assert scores["BERTScore"] is scores["BLEURT"] is None


def test_rouge_without_java_scores_as_officially() -> None:
    scores = gem.rouge(PREDICTIONS, REFERENCES)
    scores |= {"BLEU": lower_bleu(PREDICTIONS, REFERENCES)}
    for name, value in scores.items():
        assert value == pytest.approx(OFFICIAL[name], abs=1e-3), name


# ROUGE.


def left_out(scores: list[float]) -> float:
    """The jackknife as it is defined: one set of references for each that is left out."""
    sets = [[s for j, s in enumerate(scores) if j != i] for i in range(len(scores))]
    return sum(map(max, sets)) / len(sets)


@pytest.mark.parametrize("scores", [[1.0, 0.5], [0.2, 0.9, 0.4], [0.5, 0.5, 0.1, 0.0], [0.0, 0.0]])
def test_the_jackknife_leaves_each_reference_out(scores: list[float]) -> None:
    assert gem.jackknife(scores) == pytest.approx(left_out(scores))


# BLEU and METEOR.


# BERTScore and BLEURT, with random weights.

TOKENIZER = wordpiece()
IDS = TOKENIZER.get_vocab()
TEXTS = ["who built the mill ?", "a dull plot is", "the mill", "long long long"]


def saved(folder: Path, model: str, layers: int = 5, labels: int = 1) -> str:
    """A folder with random weights, so large that tokens and layers differ visibly."""
    torch.manual_seed(0)
    common = {"vocab_size": len(IDS), "max_position_embeddings": 128, "initializer_range": 0.8}
    if model == "bert":
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
        config = BertConfig(num_hidden_layers=layers, num_labels=labels, **sizes, **common)
        BertForSequenceClassification(config).save_pretrained(folder)
    else:
        config = DistilBertConfig(dim=16, hidden_dim=32, n_layers=layers, n_heads=2, **common)
        DistilBertModel(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def mean_best(of: list[list[float]], among: list[list[float]]) -> float:
    return sum(max(cosine(a, b) for b in among) for a in of[1:-1]) / (len(of) - 2)


def test_bertscore_by_hand(tmp_path: Path) -> None:
    """With vectors behind the fifth of six layers, in loops over tokens."""
    name = saved(tmp_path, "distilbert", layers=6)
    model = DistilBertModel.from_pretrained(name).eval()

    def vectors(text: str) -> list[list[float]]:
        ids = torch.tensor([[2, *[IDS[word] for word in text.split()], 3]])
        with torch.no_grad():
            rows: list[list[float]] = model(ids, output_hidden_states=True).hidden_states[5][0]
            return rows.double().tolist()

    def f1(prediction: str, reference: str) -> float:
        p = mean_best(vectors(prediction), vectors(reference))
        r = mean_best(vectors(reference), vectors(prediction))
        return 2 * p * r / (p + r)

    weights = neural.load_bertscore(name)
    each = [f1(TEXTS[0], reference) for reference in TEXTS[1:3]]
    for references, expected in ((TEXTS[1:2], each[0]), (TEXTS[1:3], max(each))):
        found = neural.bertscore(weights, TEXTS[:1], [references])
        assert found == pytest.approx(expected, abs=1e-5)


def test_bleurt_reads_the_reference_first_and_averages_over_references(tmp_path: Path) -> None:
    name = saved(tmp_path, "bert")
    model = BertForSequenceClassification.from_pretrained(name).eval()

    def rated(reference: str, prediction: str) -> float:
        first, second = ([IDS[w] for w in t.split()] for t in (reference, prediction))
        ids = [2, *first, 3, *second, 3]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        with torch.no_grad():
            return float(model(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits)

    expected = (rated(TEXTS[1], TEXTS[0]) + rated(TEXTS[2], TEXTS[0])) / 2
    assert rated(TEXTS[1], TEXTS[0]) != pytest.approx(rated(TEXTS[0], TEXTS[1]))
    both = [TEXTS[0], TEXTS[3]], [TEXTS[1:3], TEXTS[1:2]]
    found = neural.bleurt(neural.load_bleurt(name), *both)
    assert found == pytest.approx((expected + rated(TEXTS[1], TEXTS[3])) / 2, abs=1e-5)


def test_without_weights_there_is_a_reason_and_no_number(tmp_path: Path) -> None:
    lacking = saved(tmp_path / "lacking", "distilbert")
    model = DistilBertModel.from_pretrained(lacking)
    state = {k: v for k, v in model.state_dict().items() if "layer.2." not in k}
    model.save_pretrained(lacking, state_dict=state)
    reasons = {
        None: "task.bertscore is null",
        str(tmp_path / "nothing"): "could not be loaded",
        saved(tmp_path / "bert", "bert"): "is a bert of 5 layers; expected a distilbert of 5",
        saved(tmp_path / "short", "distilbert", layers=4): "a distilbert of 4 layers",
        lacking: "lacks weights",
    }
    for name, reason in reasons.items():
        absent = neural.load_bertscore(name)
        assert neural.bertscore(absent, ["a"], [["a"]]) is None
        assert absent.signature.startswith("not computed (")
        assert reason in absent.signature
    assert "has 3 outputs" in neural.load_bleurt(saved(tmp_path / "3", "bert", labels=3)).signature
    assert "task.bleurt is null" in gem.signature()
