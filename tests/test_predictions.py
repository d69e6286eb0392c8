"""Scores of predictions, and what of the references a record may hold."""

import json

import pytest

from dpft.config import Decode
from dpft.errors import DataError
from dpft.objectives.base import Prediction
from dpft.predictions import predict, read_predictions, score_file, write_predictions
from dpft.progress import Progress
from dpft.tasks.e2e import E2E
from dpft.tasks.own_texts import LanguageModeling


class Mine(E2E):
    """A task of another package, which may read anything."""


class MinePublished(Mine):
    """One whose author says that anyone may have its data."""

    published = True


OWN = [
    LanguageModeling(train_file="mine.jsonl", test_share=0.1),
    LanguageModeling(train_file="mine.jsonl", test_file="test.jsonl"),
    LanguageModeling(hub="me/mine"),
]


@pytest.mark.parametrize("task", OWN)
def test_no_hash_of_ones_own_references_is_recorded(tmp_path, task):
    """Whoever guesses a held-out record could test the guess against a plain hash."""
    file = tmp_path / "test.jsonl"
    line = {"prediction": "", "references": ["my secret"], "nll": 2.0, "tokens": 2}
    file.write_text(json.dumps(line) + "\n")

    section = score_file(task, file)
    assert set(section) == {"metrics", "examples", "signature"}
    generated = score_file(LanguageModeling(source="sample"), file)
    assert generated == {**section, "references": generated["references"]}


def test_only_known_data_sets_count_as_published():
    assert E2E().published
    assert not Mine().published
    assert MinePublished().published


class Counted(MinePublished):
    """One without a slow scorer."""

    def score(self, predictions):
        return {}

    def signature(self):
        return "none"


class PrivatelyCounted(Counted):
    published = False


ANSWERS = [
    Prediction("a", "x", ("x y",), finished=False, cut=True),
    Prediction("b", "x y", ("x y",), finished=True, cut=False),
]


def test_texts_without_an_end_are_counted_beside_the_scores(tmp_path):
    file = tmp_path / "test.jsonl"
    write_predictions(file, ANSWERS)
    assert read_predictions(file) == ANSWERS
    section = score_file(Counted(), file)
    assert (section["examples"], section["unfinished"], section["cut_prompts"]) == (2, 1, 1)
    private = score_file(PrivatelyCounted(), file)
    assert private["unfinished"] == 1
    assert "cut_prompts" not in private  # how long private questions are is not told


def test_a_file_that_does_not_say_is_not_counted(tmp_path):
    """Files of other programs, of classes, and from before a prediction said it."""
    file = tmp_path / "test.jsonl"
    write_predictions(file, [Prediction("a", "x", ("x y",)), ANSWERS[0]])
    assert "finished" not in json.loads(file.read_text().splitlines()[0])
    assert not {"unfinished", "cut_prompts"} & set(score_file(Counted(), file))


def test_a_wrong_word_for_finished_names_file_and_line(tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text('{"prediction": "", "references": ["x"], "finished": "no"}\n')
    with pytest.raises(DataError, match=r"test\.jsonl, line 1: finished is 'no'; expected true"):
        read_predictions(file)


class Answering:
    """A task whose objective answers from a list."""

    def __init__(self, answers):
        self.answers = answers

    def objective(self, loaded):
        return self

    def predict(self, *arguments):
        return self.answers


class Loaded:
    model = None


@pytest.mark.parametrize(("answers", "said"), [(ANSWERS, 1), (ANSWERS[1:], 0)])
def test_who_decodes_is_told_how_many_were_stopped(answers, said, capsys):
    settings = Decode(max_new_tokens=7)
    with Progress() as progress:
        predict(Answering(answers), Loaded(), answers, settings, 0, progress)
    warned = " ".join(capsys.readouterr().err.split())
    assert warned.count("1 of 2 texts were stopped at decode.max_new_tokens=7") == said
    assert warned.count("1 of 2 prompts were longer than the model or task.max_length") == said
