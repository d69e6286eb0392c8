"""Scores of predictions, and what of the references a record may hold."""

import json
import math

import pytest

from dpft.config.compose import compose
from dpft.config.errors import DataError
from dpft.config.schema import Decode, parse
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.tasks import load_task
from dpft.tasks.e2e import E2E
from dpft.tasks.glue import QNLI, SST2
from dpft.tasks.metrics.correct import unpacked
from dpft.tasks.objectives.base import Instance, Prediction
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.own_texts import LanguageModeling, TextToText
from dpft.training.predictions import predict, read_predictions, score_file, write_predictions
from dpft.training.progress import Progress


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
        ({"tokens": -5}, "tokens is '-5'; Input should be greater than or equal to 1"),
        ({"tokens": True}, "tokens is 'True'"),
        ({"nll": -0.5}, "nll is '-0.5'; Value error, a likelihood is at most 1"),
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


def test_what_another_program_writes_as_null_is_nothing(tmp_path):
    file = tmp_path / "dev.jsonl"
    nothing = dict.fromkeys(("subset", "source", "nll", "tokens", "finished", "cut"))
    file.write_text(json.dumps({"prediction": "x", "references": ["x"]} | nothing) + "\n")
    assert read_predictions(file) == [Prediction("", "x", ("x",))]
    numbers = {"prediction": "x", "references": ["x"], "subset": 3, "source": 4}
    file.write_text(json.dumps(numbers) + "\n")
    assert read_predictions(file) == [Prediction("4", "x", ("x",), "3")]
    file.write_text(json.dumps({"prediction": None, "references": ["x"]}) + "\n")
    with pytest.raises(DataError, match="line 1: prediction is 'None'"):
        read_predictions(file)


def test_a_model_that_diverged_can_be_read(tmp_path):
    answers = [Prediction("", "x", ("x",), nll=nll, tokens=1) for nll in (math.inf, math.nan)]
    write_predictions(tmp_path / "dev.jsonl", answers)
    infinite, nothing = read_predictions(tmp_path / "dev.jsonl")
    assert infinite == answers[0]
    assert math.isnan(nothing.nll)


@pytest.mark.parametrize("words", [["task=e2e"], ["task=dart"]])
def test_references_that_no_scorer_takes_are_one_sentence(tmp_path, words):
    lines = [{"prediction": "a b", "references": ["a b"]}, {"prediction": "c", "references": [""]}]
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = load_task(parse(compose([*words, "task.source=sample"])).task)
    with pytest.raises(DataError, match=r"test\.jsonl: item 2 has only empty references"):
        score_file(task, file)


@pytest.mark.parametrize(
    ("words", "reference"),
    [
        (["task=cifar10"], "cat"),
        (["task=classification", "task.classes=[cat,dog]", "task.train_file=none.csv"], "cat"),
        (["task=sst2"], "positive"),
    ],
)
@pytest.mark.parametrize("odd", ["3", "Cat", "Positive"])
def test_an_answer_that_is_no_class_is_not_counted_as_a_wrong_one(tmp_path, words, reference, odd):
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"prediction": odd, "references": [reference]}) + "\n")
    task = load_task(parse(compose(words)).task)
    with pytest.raises(DataError, match=f"prediction 1 has the class '{odd}'; expected one of"):
        score_file(task, file)


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


class Answering:
    """A task whose objective answers from a list."""

    unconditional = False

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


def test_a_warning_names_decoding_where_that_cuts_sources(capsys):
    tiny = load_model(parse(compose(["model=tiny"])).model, Needs("causal", source=True), 0)
    record = TextRecord(("name : Aromi | " * 40,), "x")
    task, settings = TextToText(source="sample"), Decode(beams=1, max_new_tokens=100)
    with Progress() as progress:
        (answer,) = predict(task, tiny, [Instance(record, ("x",))], settings, 0, progress)
    assert answer.cut
    warned = " ".join(capsys.readouterr().err.split())
    assert (
        "1 of 1 prompts were longer than decode.max_new_tokens=100 leaves of the model's 256 "
        "positions, and lost" in warned
    )


def test_an_accuracy_stands_beside_what_one_class_scores(tmp_path):
    file = tmp_path / "dev.jsonl"
    answers = [("positive", "positive"), ("positive", "negative"), ("positive", "positive")]
    file.write_text(
        "".join(json.dumps({"prediction": p, "references": [r]}) + "\n" for p, r in answers)
    )
    section = score_file(SST2(), file)
    assert section["distinct"] == 1
    assert section["baselines"] == {"accuracy": pytest.approx(2 / 3)}
    assert section["confusion"] == {"negative": {"positive": 1}, "positive": {"positive": 2}}
    assert unpacked(section["correct"], 3) == (True, False, True)
    # Which of one's own records a model gets right is told to nobody.
    own = ["task=classification", "task.classes=[negative,positive]", "task.train_file=none.csv"]
    assert "correct" not in score_file(load_task(parse(compose(own)).task), file)


@pytest.mark.parametrize(("sources", "counted"), [("ab", True), ("aa", False), (("", ""), True)])
def test_answers_are_counted_where_there_was_more_than_one_question(tmp_path, sources, counted):
    """Beam search answers one prompt alike, whatever was learned; "" is not known."""
    file = tmp_path / "test.jsonl"
    row = {"prediction": "x", "references": ["y"]}
    file.write_text("".join(json.dumps({**row, "source": s}) + "\n" for s in sources))
    section = score_file(TextToText(source="sample"), file)
    assert ("distinct" in section) is counted


def test_an_answer_is_right_if_it_is_the_whole_name(tmp_path):
    """The name of one class may be a part of another's."""
    file, classes = tmp_path / "dev.jsonl", ("entailment", "not_entailment")
    answers = [{"prediction": p, "references": [r]} for p in classes for r in classes]
    file.write_text("".join(json.dumps(one) + "\n" for one in answers))
    section = score_file(QNLI(), file)
    assert unpacked(section["correct"], 4) == (True, False, False, True)
    assert section["metrics"] == {"accuracy": 0.5}
