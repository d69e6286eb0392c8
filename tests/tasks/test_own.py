"""The user's own data: files, columns, users, held-out shares; and whole runs on them."""

import json
from dataclasses import replace
from itertools import chain

import pytest
import torch
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError, SettingError, SplitError
from dpft.config.schema import parse
from dpft.models.needs import Needs
from dpft.tasks import load_task, own
from dpft.tasks.conversations import Chat
from dpft.tasks.objectives.record_types import LabelledText
from dpft.tasks.own_texts import LanguageModeling, TextClassification
from dpft.tasks.samples.texts import NOTE_CLASSES
from dpft.tasks.task import SPLITS
from dpft.training.run import run_experiment
from tests.small_runs import ready, settings

ROWS = [
    {"user": f"u{n % 23}", "source": f"s{n}", "target": f"t{n % 90}", "label": "ab"[n % 2]}
    for n in range(200)
]
USERS = {"unit": "user", "user_column": "user"}
SHARES = {"dev_share": 0.2, "test_share": 0.3}


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, DataError, r"given no data. Type task\.train_file=FILE"),
        ({"source": "hub"}, ConfigError, "task.source=hub; expected one place"),
        ({"train_file": "a.csv", "data_dir": "a"}, ConfigError, r"train_file and task\.data_dir;"),
        ({"train_file": "a.csv", "source": "sample"}, ConfigError, r"and task\.source=sample"),
        ({"test_share": 0.5, "dev_share": 0.5}, ConfigError, "left for training"),
        ({"delimiter": "ab"}, ConfigError, "'ab'; expected one character"),
        ({"unit": "user"}, ConfigError, r"Type task\.user_column=NAME"),
        ({"user_column": "user"}, ConfigError, "protects single records; type task.unit=user"),
        ({**USERS, "limit_train": 5}, ConfigError, "type task.limit_train=null"),
        ({**USERS, "synthetic": "a.jsonl"}, ConfigError, "belong to no user"),
    ],
)
def test_settings_that_exclude_each_other_are_errors(settings, error, message, monkeypatch):
    monkeypatch.delenv("DPFT_DATA", raising=False)
    with pytest.raises(error, match=message):
        load_task({"name": "language_modeling", **settings}).records("test")


@pytest.mark.parametrize(
    ("weights", "got", "more"),
    [
        ({"a": 1, "c": 2}, "c", {}),
        ({"a": 0}, {"a": 0}, {}),
        ({"a": "3"}, {"a": "3"}, {}),
        ({"a": 2}, {"a": 2}, {"unit": "user", "user_column": "who"}),
    ],
)
def test_weights_are_positive_and_of_classes_of_single_records(weights, got, more):
    settings = {"name": "classification", "source": "sample", "classes": ("a", "b"), **more}
    with pytest.raises(SettingError) as error:
        load_task({**settings, "class_weights": weights})
    assert (error.value.key, error.value.got) == ("task.class_weights", got)


def test_class_weights_are_of_the_config_and_leave_other_configs_as_they_were():
    words = ["task=classification", "task.source=sample", "eps=3", "task.classes=['0',b,c]"]
    without = parse(compose(words))
    assert "class_weights" not in without.identity()["task"]
    run = parse(compose([*words, "task.class_weights={0:2,B:0.5}"]))
    assert run.identity() != without.identity()
    assert run.recorded()["task"]["class_weights"] == {0: 2, "B": 0.5}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])  # padded or not
def test_weights_of_classes_are_those_of_the_clipped_gradients(tmp_path, precision):
    words = ["task=classification", "task.source=sample", "task.class_weights={thanks: 4}"]
    run = settings(tmp_path, *words, f"precision={precision}")
    with ready(run) as (prepared, *_):
        pieces = prepared.units.microbatches(range(12), 10_000)
        batches = [prepared.units.batch(piece, 0) for piece in pieces]
    weighed = torch.cat([one.of_units(one.weights) for one in batches])
    labels = torch.cat([one.of_units(one.batch.tensors["labels"]) for one in batches])
    thanks = labels == NOTE_CLASSES.index("thanks")
    assert len(weighed) == 12
    assert 0 < thanks.sum() < 12
    assert weighed.tolist() == torch.where(thanks, 1, 0.25).tolist()


def held_out(tmp_path, rows, **settings):
    file = lines(tmp_path / "all.jsonl", rows)
    task = LanguageModeling(train_file=file, **settings)
    return {
        split: [(r.values["text"], r.values.get("user")) for r in task.rows(split)]
        for split in ("train", "dev", "test")
    }


def test_shares_split_the_records_and_one_more_moves_no_other(tmp_path):
    rows = [{"text": f"text {n % 390}"} for n in range(400)]
    shares = {"dev_share": 0.1, "test_share": 0.2}
    before = held_out(tmp_path, rows, **shares)
    assert sorted(chain(*before.values())) == sorted((row["text"], None) for row in rows)
    assert 20 < len(before["dev"]) < 60
    assert 50 < len(before["test"]) < 110
    more = [{"text": "new"}, *rows[::-1]]
    after = held_out(tmp_path, more, **shares)
    for split, texts in before.items():
        assert set(texts) == set(after[split]) - {("new", None)}
    assert sum(len(set(texts)) for texts in before.values()) == 390  # equal ones stay together
    assert held_out(tmp_path, rows, **shares, split_seed=1) != before


def test_a_model_of_synthetic_records_is_asked_of_the_same_users(tmp_path):
    rows = [{"text": f"text {n}", "user": f"u{n % 50}"} for n in range(500)]
    made = lines(tmp_path / "made.jsonl", [{"text": "made up"}] * 3)
    settings = {"train_file": lines(tmp_path / "a.jsonl", rows), "user_column": "user"}
    shares = {"dev_share": 0.2, "test_share": 0.2}
    first = LanguageModeling(unit="user", **settings, **shares)
    second = LanguageModeling(synthetic=made, **settings, **shares)
    sides = [{row.values["user"] for row in first.rows(split)} for split in SPLITS]
    assert all(sides)
    assert sum(map(len, sides)) == 50
    assert set(first.owners()) == sides[0]
    for split in ("dev", "test"):
        assert second.rows(split) == first.rows(split)
    assert (second.owners(), second.unit_noun) == (None, "record")
    assert [record.target for record in second.records("train")] == ["made up"] * 3
    assert not [line for line in second.details("train") if "users" in line]
    assert any("users; records of one" in line for line in second.details("test"))


@pytest.mark.parametrize("asked", ["train", "dev"])
def test_a_share_of_a_split_that_has_a_file_is_an_error(tmp_path, asked):
    files = {
        f"{split}_file": lines(tmp_path / f"{split}.jsonl", [{"text": f"{split} {n}"}] * 9)
        for n, split in enumerate(("train", "dev", "test"))
    }
    task = LanguageModeling(**files, dev_share=0.3)
    with pytest.raises(ConfigError, match=r"task\.dev_share=0\.3, but the data has a dev split"):
        task.records(asked)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "line 2: column 'user' is missing; expected one name"),
        ("", "line 2: column 'user' is empty"),
        (["ann", "bob"], r"line 2: column 'user' is \['ann', 'bob'\] \(list\); expected one name"),
        (True, r"is True \(bool\)"),
    ],
)
def test_users_that_are_missing_or_doubtful_are_errors(tmp_path, value, message):
    file = lines(tmp_path / "a.jsonl", [{"text": "a", "user": "ann"}, {"text": "b", "user": value}])
    task = LanguageModeling(train_file=file, unit="user", user_column="user")
    with pytest.raises(DataError, match=message):
        task.owners()


def test_names_that_are_read_as_one_are_one_user(tmp_path):
    """As two users, each would be protected separately: less than was promised."""
    names = ["ann", "bob", "ann\u200b", " ann", "\uff41nn", "ann\ufeff", "a\u0301nn", "\u00e1nn"]
    rows = [{"user": name, "text": str(n)} for n, name in enumerate(names)]
    file = lines(tmp_path / "a.jsonl", rows)
    owners = LanguageModeling(train_file=file, **USERS).owners()
    assert [*owners] == ["ann", "bob", *["ann"] * 4, *["\u00e1nn"] * 2]


def test_classes_are_given_or_asked_for(tmp_path):
    rows = [{"text": "a", "h": "c", "label": "yes"}, {"text": "b", "h": "d", "label": 0}]
    file = lines(tmp_path / "a.jsonl", rows)
    task = TextClassification(train_file=file, classes=("0", "yes"))
    assert task.records("train") == [LabelledText(("a",), 1), LabelledText(("b",), 0)]
    pairs = TextClassification(train_file=file, classes=("0", "yes"), pair_column="h")
    assert pairs.records("train") == [LabelledText(("a", "c"), 1), LabelledText(("b", "d"), 0)]
    assert task.needs == Needs("classifier", ("0", "yes"))
    with pytest.raises(ConfigError, match=r"task\.classes is not set.*from_data"):
        _ = TextClassification(train_file=file).needs
    with pytest.raises(ConfigError, match=r"task\.classes is not set"):
        _ = TextClassification().needs  # data are not asked for: dpft plan reads none
    with pytest.raises(SplitError, match=r"no train split. Type task\.train_file=FILE"):
        _ = TextClassification(test_file=file, synthetic=file, classes="from_data").needs
    collected = TextClassification(train_file=file, classes="from_data")
    assert collected.class_names == ("0", "yes")
    with pytest.raises(DataError, match=r"line 2: label '0' is no class; .* yes, no.*add it to"):
        TextClassification(train_file=file, classes=("yes", "no")).records("train")


def test_data_check_counts_records_users_and_lengths(tmp_path):
    def invoke(*words):
        return CliRunner().invoke(app, ["data", "check", *words])

    rows = [{"text": "abc", "user": f"u{n % 3}"} for n in range(10)] + [{"text": "b", "user": "v"}]
    file = lines(tmp_path / "train.jsonl", rows)
    scored = [{"text": "abc", "user": "w"}, {"text": "of u1", "user": "u1"}]
    test = lines(tmp_path / "test.jsonl", scored)
    own = [f"task.train_file={file}", f"task.test_file={test}"]
    users = ("task.unit=user", "task.user_column=user", "task.records_per_user=3")
    result = invoke("language_modeling", *own, *users)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    for part in (
        "language_modeling train: 11 records, 11 instances",
        "columns: text, user",
        "4 users; records of one: 1 to 4, median 3",
        "1 users have more than 3 records",
        "language_modeling dev: task language_modeling was given no dev split",
        "1 records are also in the training data",
        "1 users are also in the training data: no guarantee covers scores of what they wrote",
    ):
        assert part in said
    result = invoke("text2text", *own)
    assert result.exit_code == 2
    assert "line 1: no column 'source'; found 'text', 'user'" in " ".join(result.stderr.split())
    result = invoke(own[0])
    assert "then a task, as in dpft data check text2text" in " ".join(result.stderr.split())


SMALL = ["task.limit_eval=2", "optim.batch_size=12", "optim.steps=2", "threads=1", "name=own"]


def test_a_run_over_users_counts_users(tmp_path):
    overrides = [
        "task=language_modeling", "task.source=sample", "task.unit=user", "task.user_column=user",
        "task.records_per_user=3", "task.max_length=24", f"runs_dir={tmp_path}",
    ]  # fmt: skip
    outcome = run_experiment(parse(compose([*SMALL, *overrides])))
    users = len(set(LanguageModeling(source="sample", **USERS).owners()))
    mechanism = outcome.record["mechanism"]
    assert (mechanism["dataset_size"], mechanism["sampling_rate"]) == (users, 12 / users)
    assert outcome.record["privacy"]["neighbouring"] == "add or remove one user"
    # Not how many records there are, of which one user may have any number.
    assert outcome.record["dataset"]["counts"] == {"training users": users}
    metrics = (outcome.path / "private/metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["records"] < 40 for line in metrics)


def test_other_owners_are_other_data(tmp_path):
    """So a run does not continue with them: tests/training/test_session.py."""
    rows = [{"text": f"text number {n}", "who": f"user {n % 20}"} for n in range(40)]
    file = lines(tmp_path / "mine.jsonl", rows)
    overrides = [
        "task=language_modeling", f"task.train_file={file}", "task.max_length=16",
        "task.test_share=0.2", "task.unit=user", "task.user_column=who", "eps=3",
    ]  # fmt: skip
    config = parse(compose([*SMALL, f"runs_dir={tmp_path}", *overrides]))

    def data():
        with ready(config) as (prepared, *_):
            return prepared.header["data"]

    before = data()
    assert data() == before
    lines(tmp_path / "mine.jsonl", [{**rows[0], "who": "user 1"}, *rows[1:]])
    assert data() != before


def problems(task):
    """The lines of the error that names rows which cannot be used."""
    with pytest.raises(DataError) as found:
        task.records("train")
    return [line.strip() for line in str(found.value).splitlines()]


def test_all_rows_that_cannot_be_used_are_named_at_once(tmp_path):
    rows = ["text,label", *["fine,yes"] * 3, "short", *["fine,no", ",yes", "x,maybe"] * 2, "a,b,c"]
    file = tmp_path / "a.csv"
    task = TextClassification(train_file=str(file), classes=("yes", "no"))
    file.write_text("\n".join(rows))
    first, *several = problems(task)
    assert first == f"{file}: 2 rows cannot be used:"
    assert [line.partition(": got")[0] for line in several] == ["line 5", "line 12"]
    file.write_text("\n".join([*rows[:4], *rows[5:-1]]))
    first, *several = problems(replace(task))
    assert first == f"{file}: 4 rows cannot be used:"
    assert several[0].startswith("line 6, line 9: column 'text' is empty")
    assert "line 7, line 10: label 'maybe' is no class" in several[1]
    talks = [[{"role": role, "content": "x"} for role in ("user", "assistant")]]
    talks += [[{"role": "critic", "content": "x"}]] * 15
    first, *several = problems(
        Chat(train_file=lines(tmp_path / "a.jsonl", [{"messages": talk} for talk in talks]))
    )
    assert "15 rows cannot be used" in first
    assert several[0].startswith("line 2, line 3")
    assert "line 11 and others" in several[0]


def test_data_of_a_published_size_are_named(tmp_path, monkeypatch):
    file = tmp_path / "a.jsonl"
    lines(file, [{"text": f"text {n}"} for n in range(7)])
    task = LanguageModeling(train_file=str(file))
    assert task.remarks() == []
    monkeypatch.setattr(own, "settings_of", lambda _, name: {"train_size": 7 + (name != "sst2")})
    (said,) = task.remarks()
    assert "task=sst2 reads its files as they are published" in said


def test_labels_that_differ_by_accident_are_one_class(tmp_path):
    names = ["caf\u00e9", "cafe\u0301", "Caf\u00e9 ", "no", " no"]
    file = tmp_path / "a.jsonl"
    lines(file, [{"text": f"text {n}", "label": name} for n, name in enumerate(names)])
    for classes in ("from_data", ("Caf\u00e9", "no")):
        task = TextClassification(train_file=str(file), classes=classes)
        assert len(task.class_names) == 2
        assert [record.label for record in task.records("train")] == [0, 0, 0, 1, 1]
        (said,) = [one for one in task.remarks() if "are one class" in one]
        assert "' no' (1 records) as" in said or "'no' (1 records) as" in said
    both = TextClassification(train_file=str(file), classes=("no", " no", "caf\u00e9"))
    assert [record.label for record in both.records("train")] == [2, 2, 2, 0, 1]
