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

from dpft.tasks.metrics import coco, gem, neural
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


def test_words_are_those_of_nltk_before_they_are_stemmed() -> None:
    assert gem.rouge(["It cannot swim"], [["it can not swims"]])["ROUGE_1"] == pytest.approx(100)
    # "do", "n", "t" and "do", "not": one word of three and of two.
    assert gem.rouge(["don't"], [["do not"]])["ROUGE_1"] == pytest.approx(100 * 2 / 5)


# BLEU and METEOR.


def test_meteor_reads_raw_texts_without_empty_references(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[object] = []
    monkeypatch.setattr(coco, "meteor", lambda *texts: got.append(texts) or 0.5)
    scores = gem.score(["It isn't Bob's."], [["", "Bob's? NO!", " "]])
    assert got == [(["It isn't Bob's."], [["Bob's? NO!"]])]
    assert scores["METEOR"] == 0.5
    assert scores == gem.score(["It isn't Bob's."], [["Bob's? NO!"]])


# BERTScore and BLEURT, with random weights.

TOKENIZER = wordpiece()
IDS = TOKENIZER.get_vocab()
TEXTS = ["who built the mill ?", "a dull plot is", "the mill", "long long long"]


def save_distilbert(folder: Path, layers: int = 6) -> str:
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=len(IDS),
        dim=16,
        hidden_dim=32,
        n_layers=layers,
        n_heads=2,
        max_position_embeddings=24,
        initializer_range=0.8,  # so that tokens and layers differ visibly
    )
    DistilBertModel(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


def save_bleurt(folder: Path, labels: int = 1) -> str:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(IDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        num_labels=labels,
        initializer_range=0.8,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_distilbert(tmp_path_factory.mktemp("distilbert"))


@pytest.fixture(scope="module")
def bleurt(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bleurt(tmp_path_factory.mktemp("bleurt"))


def token_vectors(folder: str, text: str, layer: int) -> list[list[float]]:
    """Vectors of one text alone, special tokens included, from the model as it was saved."""
    ids = [2, *[IDS[word] for word in text.split()], 3]
    model = DistilBertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    rows: list[list[float]] = hidden[layer][0].double().tolist()
    return rows


def by_hand(prediction: list[list[float]], reference: list[list[float]]) -> tuple[float, ...]:
    """Precision, recall, F1: greedy matching, in loops over tokens."""

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    def mean_best(of: list[list[float]], among: list[list[float]]) -> float:
        return sum(max(cosine(a, b) for b in among) for a in of[1:-1]) / (len(of) - 2)

    p, r = mean_best(prediction, reference), mean_best(reference, prediction)
    return p, r, 2 * p * r / (p + r)


def found_bertscore(name: str) -> neural.BERTScore:
    scorer = neural.load_bertscore(name)
    assert isinstance(scorer, neural.BERTScore), scorer
    return scorer


def test_bertscore_by_hand(distilbert: str) -> None:
    fifth = {text: token_vectors(distilbert, text, 5) for text in TEXTS}
    found = found_bertscore(distilbert).items(TEXTS[:1], [TEXTS[1:2]])[0]
    assert found == pytest.approx(by_hand(fifth[TEXTS[0]], fifth[TEXTS[1]]), abs=1e-5)
    sixth = [token_vectors(distilbert, text, 6) for text in TEXTS[:2]]
    assert abs(found[2] - by_hand(*sixth)[2]) > 1e-3


def test_bertscore_takes_the_best_of_each_over_references(
    distilbert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = iter([(0.9, 0.2, 0.33), (0.3, 0.8, 0.44)])
    monkeypatch.setattr(neural, "match", lambda prediction, reference: next(pairs))
    found = found_bertscore(distilbert).items(TEXTS[:1], [TEXTS[1:3]])
    assert found == [(0.9, 0.8, 0.44)]


def test_bleurt_reads_the_reference_first_and_averages_over_references(bleurt: str) -> None:
    scorer = neural.load_bleurt(bleurt)
    assert isinstance(scorer, neural.BLEURT), scorer
    model = BertForSequenceClassification.from_pretrained(bleurt).eval()

    def rated(reference: str, prediction: str) -> float:
        first, second = ([IDS[w] for w in t.split()] for t in (reference, prediction))
        ids = [2, *first, 3, *second, 3]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        with torch.no_grad():
            return float(model(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits)

    expected = (rated(TEXTS[1], TEXTS[0]) + rated(TEXTS[2], TEXTS[0])) / 2
    assert scorer.items(TEXTS[:1], [TEXTS[1:3]]) == pytest.approx([expected], abs=1e-5)
    assert rated(TEXTS[1], TEXTS[0]) != pytest.approx(rated(TEXTS[0], TEXTS[1]))
    other = rated(TEXTS[1], TEXTS[3])
    assert scorer.score([TEXTS[0], TEXTS[3]], [TEXTS[1:3], TEXTS[1:2]]) == pytest.approx(
        (expected + other) / 2, abs=1e-5
    )


def test_without_weights_there_is_a_reason_and_no_number(tmp_path: Path) -> None:
    reasons = {
        None: "task.bertscore is null",
        str(tmp_path / "nothing"): "could not be loaded",
        save_bleurt(tmp_path / "bert"): "is a bert of 2 layers; expected a distilbert of 5 or more",
        save_distilbert(tmp_path / "short", layers=4): "a distilbert of 4 layers",
    }
    for name, reason in reasons.items():
        absent = neural.load_bertscore(name)
        assert absent.score(["a"], [["a"]]) is None
        assert absent.signature.startswith("not computed (")
        assert reason in absent.signature
    assert "has 3 outputs" in neural.load_bleurt(save_bleurt(tmp_path / "3", 3)).signature
    assert "task.bleurt is null" in gem.signature()


def test_missing_weights_are_not_drawn_at_random(tmp_path: Path) -> None:
    name = save_distilbert(tmp_path)
    model = DistilBertModel.from_pretrained(name)
    state = {k: v for k, v in model.state_dict().items() if "layer.2." not in k}
    model.save_pretrained(tmp_path, state_dict=state)
    assert "lacks weights" in neural.load_bertscore(name).signature
