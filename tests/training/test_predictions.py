"""Scores of predictions, and what of the references a record may hold."""

import json
from types import SimpleNamespace

import pytest

from dpft.config.compose import compose
from dpft.config.errors import DataError
from dpft.config.schema import Decode, parse
from dpft.tasks import load_task
from dpft.tasks.classification import SST2
from dpft.tasks.objectives.objective import Prediction
from dpft.tasks.own_texts import LanguageModeling
from dpft.tasks.scores import unpacked
from dpft.training.predictions import predict, read_predictions, score_file, write_predictions
from dpft.training.progress import Progress


def test_no_hash_of_ones_own_references_is_recorded(tmp_path):
    """Whoever guesses a held-out record could test the guess against a plain hash."""
    task, file = LanguageModeling(train_file="mine.jsonl"), tmp_path / "test.jsonl"
    line = {"prediction": "", "references": ["my secret"], "nll": 2.0, "tokens": 2}
    file.write_text(json.dumps(line) + "\n")

    section = score_file(task, file)
    assert set(section) == {"metrics", "examples", "signature"}
    generated = score_file(LanguageModeling(source="sample"), file)
    assert generated == {**section, "references": generated["references"]}


ANSWERS = [
    Prediction("a", "x", ("x y",), finished=False, cut=True),
    Prediction("b", "x y", ("x y",), finished=True, cut=False),
]


def test_nothing_is_lost_between_predicting_and_scoring(tmp_path):
    """Every run is scored from its file."""
    full = [
        Prediction("a", "x", ("x", "y"), "matched", 1.5, 3, True, False),
        Prediction("", "", ("y",), "mismatched", 0.0, 1, False, True),
    ]
    write_predictions(tmp_path / "dev.jsonl", full)
    assert read_predictions(tmp_path / "dev.jsonl") == full


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tokens": 0}, "tokens is '0'"),
        ({"nll": "1"}, "nll is '1'"),
        ({"finished": "no"}, "finished is 'no'; Input should be a valid boolean"),
    ],
)
def test_what_no_likelihood_can_be_is_refused_with_its_line(tmp_path, more, said):
    file = tmp_path / "dev.jsonl"
    line = {"prediction": "x", "references": ["x"], "nll": 1.0, "tokens": 1}
    file.write_text(json.dumps(line) + "\n" + json.dumps(line | more) + "\n")
    with pytest.raises(DataError, match=f"dev.jsonl, line 2: {said}"):
        read_predictions(file)


@pytest.mark.parametrize(
    ("words", "reference"),
    [
        (["task=cifar10"], "cat"),
        (["task=classification", "task.classes=[cat,dog]", "task.train_file=none.csv"], "cat"),
        (["task=sst2"], "positive"),
    ],
)
def test_an_answer_that_is_no_class_is_not_counted_as_a_wrong_one(tmp_path, words, reference):
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"prediction": "Cat", "references": [reference]}) + "\n")
    task = load_task(parse(compose(words)).task)
    with pytest.raises(DataError, match="prediction 1 has the class 'Cat'; expected one of"):
        score_file(task, file)


@pytest.mark.parametrize(("answers", "said"), [(ANSWERS, 1), (ANSWERS[1:], 0)])
def test_a_warning_counts_the_texts_that_were_stopped(answers, said, capsys):
    task = SimpleNamespace(unconditional=False, predict=lambda *given: answers)
    task.objective = lambda loaded: task
    with Progress() as progress:
        settings = Decode(max_new_tokens=7)
        predict(task, SimpleNamespace(model=None), answers, settings, 0, progress)
    warned = " ".join(capsys.readouterr().err.split())
    assert warned.count("1 of 2 texts were stopped at decode.max_new_tokens=7") == said
    assert warned.count("1 of 2 prompts lost a part:") == said


def test_an_accuracy_is_recorded_with_that_of_one_class(tmp_path):
    file = tmp_path / "dev.jsonl"
    answers = [("positive", "positive"), ("positive", "negative"), ("positive", "positive")]
    lines = (json.dumps({"prediction": p, "references": [r]}) for p, r in answers)
    file.write_text("\n".join(lines))
    section = score_file(SST2(), file)
    assert section["distinct"] == 1
    assert section["baselines"] == {"accuracy": pytest.approx(2 / 3)}
    assert section["confusion"] == {"negative": {"positive": 1}, "positive": {"positive": 2}}
    assert unpacked(section["correct"], 3) == (True, False, True)
    # Which of the user's records a model answers correctly is not recorded.
    own = ["task=classification", "task.classes=[negative,positive]", "task.train_file=none.csv"]
    assert "correct" not in score_file(load_task(parse(compose(own)).task), file)
