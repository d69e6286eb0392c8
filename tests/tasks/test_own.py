"""One's own data: files, columns, users, held-out shares; and whole runs on them."""

import csv
import json
import math
import shlex
from itertools import chain

import datasets
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from dpft import runs
from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.schema import Decode, parse
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs
from dpft.privacy import accounting
from dpft.tasks import load_task, sources
from dpft.tasks.base import SPLITS, fingerprint
from dpft.tasks.objectives.base import Prediction
from dpft.tasks.objectives.records import LabelledText, TextRecord
from dpft.tasks.own_texts import LanguageModeling, TextClassification, TextToText
from dpft.tasks.table_files import read_table
from dpft.training.run import run_experiment
from tests.tasks.files import write_parquet
from tests.tasks.objectives.encoders import build
from tests.tasks.objectives.letters import prompt_of
from tests.tasks.objectives.own_losses import check_losses_are_their_own

ROWS = [
    {"user": "anna@example.org", "source": "one", "target": "eins"},
    {"user": "anna@example.com", "source": "two", "target": "zwei"},
    {"user": "anna@example.org", "source": 'three, "3"', "target": "drei\nDrei"},
]
TASKS = ("text2text", "classification", "language_modeling")


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def table(path, rows, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


# Reading.


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv", "parquet", "CSV"])
def test_every_format_gives_the_same_records(tmp_path, suffix):
    file = tmp_path / f"train.{suffix}"
    if suffix.lower() in ("csv", "tsv"):
        table(file, ROWS, "\t" if suffix == "tsv" else ",")
    elif suffix == "parquet":
        write_parquet(file, ROWS)
    elif suffix == "json":
        file.write_text(json.dumps(ROWS, indent=2))
    else:
        lines(file, ROWS)
    task = TextToText(train_file=str(file), unit="user", user_column="user")
    assert task.records("train") == [TextRecord((r["source"],), r["target"]) for r in ROWS]
    assert task.owners() == [r["user"] for r in ROWS]
    assert task.location == ("files", file)


def test_blank_lines_and_json_lines_under_the_name_json_are_read(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"text": "a"}\n\n{"text": "b\\u2028c"}\n')
    assert [row.values["text"] for row in read_table(file)] == ["a", "b\u2028c"]
    assert read_table(file)[1].place.endswith("a.json, line 3")


def test_quotation_marks_are_suspected_in_csv_files_alone(tmp_path):
    files = lines(tmp_path / "a.jsonl", ROWS), table(tmp_path / "a.csv", ROWS)
    said = [" ".join(TextToText(train_file=file).details("train")) for file in files]
    assert all("1 records hold line breaks" in one for one in said)
    assert ["quotation mark" in one for one in said] == [False, True]


def test_quoted_line_breaks_do_not_shift_the_lines_that_are_named(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('text,user\n"one\ntwo",ann\nthree,\n')
    with pytest.raises(DataError, match=r"a\.csv, line 4: column 'user' is empty"):
        LanguageModeling(train_file=str(file), unit="user", user_column="user").owners()


def test_a_parquet_file_with_a_column_twice_is_refused(tmp_path):
    """Of which the last would win."""
    both = pyarrow.Table.from_arrays([["x"], ["a"], ["b"]], names=["label", "text", "text"])
    pyarrow.parquet.write_table(both, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: column 'text' is there twice"):
        read_table(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("b.csv", " text, label\na,b\n", "no column 'text'; found ' text', ' label'"),
        ("a.txt", "x", r"suffix '\.txt'; expected one of \.jsonl, \.json, \.csv"),
        ("a.jsonl", "", r"a\.jsonl has no rows"),
        ("a.jsonl", '{"text": "a"}\n{"text": ', r"a\.jsonl, line 2: .*expected JSON"),
        ("a.jsonl", '{"text": "a"}\n' + "[" * 20_000, "line 2: it is nested too deep"),
        ("a.jsonl", "9" * 5_000, "line 1: Exceeds the limit"),
        ("a.jsonl", '["text"]', r"line 1: got \['text'\]; expected a JSON object"),
        ("a.json", '[{"text": "a"}, 3]', r"a\.json, line 1, entry 2: got 3"),
        ("a.jsonl", '{"text": "a", "text": "b"}', "line 1: 'text' is there twice"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "b"}', r"line 2: no column 'text'; found 'txt'\. Type"),
        ("a.jsonl", '{"text": 5}', r"line 1: column 'text' is 5 \(int\); expected text"),
        ("a.jsonl", '{"text": null}', "column 'text' is None"),
        ("a.jsonl", '{"text": " "}', "line 1: column 'text' is empty"),
        ("a.jsonl", '{"text": "\\ud800"}', "line 1, column 'text': got .* no valid Unicode"),
        ("a.csv", "", "is empty; expected column names"),
        ("a.csv", "text,text\na,b\n", "line 1: column 'text' is there twice"),
        ("a.csv", "text,n\na,b\nc\n", "line 3: got 1 cells for 2 columns"),
        ("a.csv", "text,n\na,b,c\n", "line 2: got 3 cells for 2 columns"),
        ("a.csv", "words\na\n", "line 2: no column 'text'; found 'words'"),
        ("a.csv", 'text\n"a"b\n', "after line 1.*expected cells in double quotes"),
        ("a.csv", b"text\n\xff\n", "not UTF-8"),
        ("a.tsv", 'text\tn\n"I came.\tx\nI left."\ty\n', "line 2: got a cell in quotes with tabs"),
        ("a.parquet", "nonsense", "not a parquet file"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(tmp_path, name, text, message):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        LanguageModeling(train_file=str(file)).records("train")


@pytest.mark.parametrize("what", ["test_file", "synthetic", "questions", "read_file"])
def test_rows_beside_the_training_data_are_to_have_its_columns(tmp_path, what):
    """Another setting of the column would be refused after training, or be wrong for training."""
    train = lines(tmp_path / "train.jsonl", [{"text": "a"}])
    other = tmp_path / "other.csv"

    def read():
        if what in ("questions", "read_file"):
            task = LanguageModeling(train_file=train)
            asked = getattr(task, what)(other)
            return asked if what == "questions" else [task.record(row) for row in asked]
        task = LanguageModeling(train_file=train, **{what: str(other)})
        return task.records("test" if what == "test_file" else "train")[:]

    other.write_text("words,id\na,1\n")
    advised = r"line 2: no column 'text'; found 'words', 'id'\. Rename the .* 'text', its name in"
    with pytest.raises(DataError, match=advised):
        read()
    other.write_text("text,id\na,1\n")
    assert len(read()) == 1


def test_a_missing_file_is_named(tmp_path):
    for name in ("no.csv", "no.jsonl", "no.parquet"):
        with pytest.raises(DataError, match=f"{name}"):
            LanguageModeling(train_file=str(tmp_path / name)).records("train")


def test_a_folder_may_hold_the_splits(tmp_path):
    lines(tmp_path / "train.jsonl", [{"text": "a"}])
    table(tmp_path / "test.csv", [{"text": "b"}])
    task = LanguageModeling(data_dir=str(tmp_path))
    assert [task.records(s)[0].target for s in ("train", "test")] == ["a", "b"]
    with pytest.raises(DataError, match=r"given no dev split.*task\.dev_share=0\.1"):
        task.records("dev")


def test_two_files_for_a_split_are_refused(tmp_path):
    lines(tmp_path / "train.jsonl", [{"text": "old"}])
    table(tmp_path / "train.csv", [{"text": "new"}])
    with pytest.raises(DataError, match=r"holds train\.jsonl and train\.csv; expected one file"):
        LanguageModeling(data_dir=str(tmp_path)).records("train")


def test_a_folder_without_the_splits_is_told_what_they_are_called(tmp_path):
    table(tmp_path / "training.csv", [{"text": "a"}])
    with pytest.raises(DataError, match=r"no train\.jsonl found \(nor .*train\.csv, .*looked in"):
        LanguageModeling(data_dir=str(tmp_path)).records("train")
    with pytest.raises(DataError, match=r"looked in .*training\.csv, which is a file"):
        LanguageModeling(data_dir=str(tmp_path / "training.csv")).records("train")


def test_an_empty_synthetic_file_is_refused(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    task = LanguageModeling(source="sample", synthetic=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"none\.jsonl has no rows"):
        task.records("train")


def test_a_data_set_of_the_hub_is_read_by_its_columns(monkeypatch):
    asked = []

    def load(hub, name, split, advice):
        asked.append((hub.id, hub.config, hub.splits[split]))
        return [{"q": "one", "a": "eins"}, {"q": "two", "a": "zwei"}]

    monkeypatch.setattr("dpft.tasks.sources._load_hub", load)
    settings = {"hub": "me/numbers", "hub_config": "de", "test_split": None, "test_share": 0.5}
    task = TextToText(source_column="q", target_column="a", **settings)
    assert len(task.records("dev")) == 2
    assert len(task.records("train")) + len(task.records("test")) == 2
    assert asked[0] == ("me/numbers", "de", "validation")
    assert {entry[2] for entry in asked[1:]} == {"train"}
    with pytest.raises(DataError, match=r"me/numbers, row 1: no column 'x'; found 'q', 'a'"):
        TextToText(source_column="x", target_column="a", **settings).records("dev")


# Settings.


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, DataError, r"given no data. Type task\.train_file=FILE"),
        ({"source": "hub"}, ConfigError, r"Type task\.hub=OWNER/NAME"),
        ({"train_file": "a.csv", "hub": "a/b"}, ConfigError, r"train_file and task\.hub; expected"),
        ({"train_file": "a.csv", "data_dir": "a"}, ConfigError, "expected one place"),
        ({"train_file": "a.csv", "source": "sample"}, ConfigError, r"and task\.source=sample"),
        ({"train_file": "a.csv", "source": "hub"}, ConfigError, "task.source=hub beside"),
        ({"test_share": 1.0}, ConfigError, r"task\.test_share is 1\.0"),
        ({"test_share": 0.5, "dev_share": 0.5}, ConfigError, "left for training"),
        ({"source": "sample", "test_share": 0.5}, ConfigError, "test split of its own"),
        ({"unit": "person"}, ConfigError, "task.unit is 'person'"),
        ({"unit": "user"}, ConfigError, r"Type task\.user_column=NAME"),
        ({"user_column": "user"}, ConfigError, "protects single records; type task.unit=user"),
        (
            {"unit": "user", "user_column": "user", "limit_train": 5},
            ConfigError,
            "task.limit_train=5 beside task.unit=user",
        ),
        (
            {"unit": "user", "user_column": "user", "synthetic": "a.jsonl"},
            ConfigError,
            "records are nobody's",
        ),
        ({"records_per_user": 0}, ConfigError, "records_per_user is 0"),
        ({"max_length": 1}, ConfigError, "max_length is 1"),
        ({"loss": "max"}, ConfigError, "task.loss is 'max'"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, error, message, monkeypatch):
    monkeypatch.delenv("DPFT_DATA", raising=False)
    with pytest.raises(error, match=message):
        load_task({"name": "language_modeling", **settings}).records("test")


def test_more_tokens_than_the_model_has_positions_for_are_refused(tiny):
    for task in (LanguageModeling(max_length=257), TextToText(max_length=257)):
        with pytest.raises(ConfigError, match=r"type task\.max_length=256"):
            task.objective(tiny)


@pytest.mark.parametrize("cut", ["source", "target"])
def test_no_source_is_too_long_to_train_on_or_to_answer(cut, tiny):
    settings = {"max_length": 256, "before": "Repair: ", "after": " Note:", "cut": cut}
    objective = TextToText(source="sample", **settings).objective(tiny)
    record = TextRecord(("kettle " * 900,), "mended " * 900)
    assert objective.encode(record).length == 256
    assert len(prompt_of(objective, record, 20)) <= 255
    with pytest.raises(
        ConfigError, match=r"task\.before and task\.after have \d+ tokens of the 16"
    ):
        TextToText(
            source="sample", **settings | {"max_length": 16, "before": "a b " * 9}
        ).objective(tiny)


@pytest.mark.parametrize("settings", [{"cut": "source"}, {"cut": "target"}, {"ends": False}])
def test_a_long_target_without_a_frame_still_follows_something(settings, tiny):
    """Else the loss of its first token would depend on the padding, and so on other records."""
    objective = TextToText(source="sample", max_length=12, **settings).objective(tiny)
    records = [TextRecord(("kettle",), "mended " * n) for n in (1, 4, 30)]
    examples = [objective.encode(record) for record in records]
    assert all(example.prompt and example.target for example in examples)
    assert max(example.length for example in examples) == 12
    check_losses_are_their_own(tiny.model.eval(), objective, records)


# Held-out shares.


def held_out(tmp_path, rows, **settings):
    file = lines(tmp_path / "all.jsonl", rows)
    task = LanguageModeling(train_file=file, **settings)
    return {
        split: [(r.values["text"], r.values.get("user")) for r in task.rows(split)]
        for split in ("train", "dev", "test")
    }


def test_shares_split_the_records_and_one_more_moves_no_other(tmp_path):
    rows = [{"text": f"text {n}"} for n in range(400)]
    shares = {"dev_share": 0.1, "test_share": 0.2}
    before = held_out(tmp_path, rows, **shares)
    assert sorted(chain(*before.values())) == sorted((row["text"], None) for row in rows)
    assert 20 < len(before["dev"]) < 60
    assert 50 < len(before["test"]) < 110
    more = [{"text": "new"}, *rows[::-1]]
    after = held_out(tmp_path, more, **shares)
    for split, texts in before.items():
        assert set(texts) == set(after[split]) - {("new", None)}
    assert held_out(tmp_path, rows, **shares, split_seed=1) != before


def test_equal_records_are_never_on_both_sides(tmp_path):
    found = held_out(
        tmp_path,
        [{"text": f"text {n % 40}"} for n in range(80)],
        dev_share=0.3,
        test_share=0.3,
    )
    sides = [set(texts) for texts in found.values()]
    assert sum(map(len, sides)) == 40


def test_a_model_of_synthetic_records_is_asked_of_the_same_users(tmp_path):
    rows = [{"text": f"text {n}", "user": f"u{n % 50}"} for n in range(500)]
    made = lines(tmp_path / "made.jsonl", [{"text": "made up"}] * 3)
    settings = {"train_file": lines(tmp_path / "a.jsonl", rows), "user_column": "user"}
    shares = {"dev_share": 0.2, "test_share": 0.2}
    first = LanguageModeling(unit="user", **settings, **shares)
    second = LanguageModeling(synthetic=made, **settings, **shares)
    for split in ("dev", "test"):
        assert second.rows(split) == first.rows(split)
        assert f"{split} split: about 0.2 of the users" in " ".join(second.labels())
    assert (second.owners(), second.unit_noun) == (None, "record")
    assert [record.target for record in second.records("train")] == ["made up"] * 3
    assert not [line for line in second.details("train") if "users" in line]
    assert any("users; records of one" in line for line in second.details("test"))


def test_users_are_held_out_whole(tmp_path):
    rows = [{"text": f"text {n}", "user": f"u{n % 50}"} for n in range(500)]
    settings = {"unit": "user", "user_column": "user", "dev_share": 0.2, "test_share": 0.2}
    found = held_out(tmp_path, rows, **settings)
    sides = [{user for _, user in texts} for texts in found.values()]
    assert all(sides)
    assert sum(map(len, sides)) == 50
    task = LanguageModeling(train_file=str(tmp_path / "all.jsonl"), **settings)
    assert set(task.owners()) == sides[0]
    assert task.labels() == [
        "dev split: about 0.2 of the users in the training data, held out",
        "test split: about 0.2 of the users in the training data, held out",
    ]


def test_a_second_spelling_of_a_user_is_found_before_the_split(tmp_path):
    """Else one of them could be trained on, and the other asked about."""
    rows = [
        {"user": f"user{i}{end}", "text": f"{i} {j}"}
        for i in range(20)
        for j, end in enumerate(("", " "))
    ]
    for split in ("train", "test"):
        file = lines(tmp_path / "all.jsonl", rows)
        task = LanguageModeling(train_file=file, unit="user", user_column="user", test_share=0.3)
        with pytest.raises(DataError, match="'user0 ' differs from 'user0'"):
            task.records(split)


@pytest.mark.parametrize(
    "other",
    [
        *("ann\u200b", "\u200eann", " ann", "\uff41nn", "ann\ufeff", "ann\ufe0f", "an\u034fn"),
        *("ann\u3164", "\uffa0ann", "ann\u2800", "ann\U000e0061"),
    ],
)
def test_a_name_that_looks_like_another_is_refused(tmp_path, other):
    rows = [{"user": name, "text": "x"} for name in ("ann", "bob", other)]
    file = lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match="differs from 'ann'"):
        LanguageModeling(train_file=file, unit="user", user_column="user").owners()


@pytest.mark.parametrize("asked", ["train", "dev", "test"])
def test_a_share_beside_a_split_of_its_own_takes_nothing_away_in_silence(tmp_path, asked):
    files = {
        f"{split}_file": lines(tmp_path / f"{split}.jsonl", [{"text": f"{split} {n}"}] * 9)
        for n, split in enumerate(("train", "dev", "test"))
    }
    task = LanguageModeling(**files, dev_share=0.3)
    with pytest.raises(ConfigError, match=r"task\.dev_share=0\.3, but the data has a dev split"):
        task.records(asked)


def test_a_share_of_too_few_records_is_refused(tmp_path):
    with pytest.raises(DataError, match="no record fell to the dev split"):
        held_out(tmp_path, [{"text": "b"}], dev_share=0.01, test_share=0.01)


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ('ann,"I came\nbob,fine\ncy,he said no"\ndee,bye\n', 1),
        ('ann,"Roses are red\nviolets are blue"\nbob,fine\n', 0),
        ('ann,"one, two\nthree, four, five"\nbob,fine\n', 0),
        ("ann,hi\nbob,fine\n", 0),
    ],
)
def test_rows_that_a_quotation_mark_may_have_swallowed_are_told(tmp_path, text, odd):
    file = tmp_path / "a.csv"
    file.write_text(f"user,text\n{text}")
    task = LanguageModeling(train_file=str(file), unit="user", user_column="user")
    remarks = task.remarks()
    assert len(remarks) == odd
    if odd:
        assert "1 training records hold lines that look like rows" in remarks[0]
        assert "a.csv, line 2" in remarks[0]
        assert remarks[0] in task.details("train")


# Users.


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "line 2: column 'user' is missing; expected one name"),
        ("", "line 2: column 'user' is empty"),
        (["ann", "bob"], r"line 2: column 'user' is \['ann', 'bob'\] \(list\); expected one name"),
        (1.5, r"is 1\.5 \(float\)"),
        (True, r"is True \(bool\)"),
        ("ann ", r"line 2: user 'ann ' differs from 'ann' \(.*line 1\) only in spaces"),
    ],
)
def test_users_that_are_missing_or_doubtful_are_refused(tmp_path, value, message):
    file = lines(tmp_path / "a.jsonl", [{"text": "a", "user": "ann"}, {"text": "b", "user": value}])
    task = LanguageModeling(train_file=file, unit="user", user_column="user")
    with pytest.raises(DataError, match=message):
        task.owners()


def test_users_may_be_numbered(tmp_path):
    file = lines(tmp_path / "a.jsonl", [{"text": "a", "user": 7}, {"text": "b", "user": "7"}])
    task = LanguageModeling(train_file=file, unit="user", user_column="user")
    assert task.owners() == ["7", "7"]


def test_a_user_without_a_column_of_that_name(tmp_path):
    file = lines(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(DataError, match=r"no column 'user'; found 'text'\. Type task\.user_column"):
        LanguageModeling(train_file=file, unit="user", user_column="user").owners()


def test_the_unit_is_told_in_words():
    assert LanguageModeling(source="sample").unit_noun == "record"
    task = LanguageModeling(source="sample", unit="user", user_column="author")
    assert task.unit_noun == "user"
    assert task.unit_in_words == (
        "all training records that name the same user (column author); at most 8 of them, drawn "
        "anew, take part in a step"
    )


def test_other_owners_of_the_same_records_are_other_data():
    records = [TextRecord((), "a"), TextRecord((), "b")]
    told = [fingerprint(records, owners) for owners in (None, ["x", "y"], ["x", "x"], ["xy", ""])]
    assert len(set(told)) == 4
    assert told[0] == fingerprint(records)


# Records and scores.


def test_classes_are_given_or_asked_for(tmp_path):
    rows = [{"text": "a", "label": "yes"}, {"text": "b", "label": 0}]
    file = lines(tmp_path / "a.jsonl", rows)
    task = TextClassification(train_file=file, classes=("0", "yes"))
    assert task.records("train") == [LabelledText(("a",), 1), LabelledText(("b",), 0)]
    assert task.needs == Needs("classifier", ("0", "yes"))
    assert "class names" not in " ".join(task.labels())
    with pytest.raises(ConfigError, match=r"task\.classes is not set.*from_data"):
        _ = TextClassification(train_file=file).needs
    with pytest.raises(ConfigError, match=r"task\.classes is not set"):
        _ = TextClassification().needs  # data are not asked for: dpft plan reads none
    with pytest.raises(SplitError, match=r"no train split. Type task\.train_file=FILE"):
        _ = TextClassification(test_file=file, synthetic=file, classes="from_data").needs
    collected = TextClassification(train_file=file, classes="from_data")
    assert collected.class_names == ("0", "yes")
    assert collected.labels() == ["class names taken from the training data, outside the guarantee"]
    with pytest.raises(DataError, match=r"line 2: label '0' is no class; .* yes, no.*add it to"):
        TextClassification(train_file=file, classes=("yes", "no")).records("train")


@pytest.mark.parametrize("classes", ["[yes]", "[a,b,a]", "yes", "[true,false]", "[a,null]"])
def test_classes_that_are_none_are_refused(classes):
    settings = compose(["task=classification", f"task.classes={classes}"])["task"]
    with pytest.raises(ConfigError, match=r"task\.classes is"):
        load_task(settings)


def test_numbers_are_class_names_too():
    task = load_task(compose(["task=classification", "task.classes=[0,1]"])["task"])
    assert task.class_names == ("0", "1")


def test_pairs_of_texts(tmp_path):
    rows = [{"p": "a", "h": "b", "label": "no"}, {"p": "c", "h": "d", "label": "yes"}]
    file = lines(tmp_path / "a.jsonl", rows)
    task = TextClassification(
        train_file=file, text_column="p", pair_column="h", classes=("yes", "no")
    )
    expected = [LabelledText(("a", "b"), 1), LabelledText(("c", "d"), 0)]
    assert task.records("train") == expected


def test_classification_trains_and_scores_with_an_encoder():
    task = TextClassification(source="sample", limit_eval=6, max_length=20)
    model, tokenizer = build("roberta", masked=False, classes=len(task.class_names))
    objective = task.objective(LoadedModel(model, tokenizer, ()))
    examples = [objective.encode(record) for record in task.records("train")[:4]]
    assert objective.losses(model, objective.collate(examples)).shape == (4,)
    predictions = objective.predict(model, task.instances("test"), Decode(), 0, lambda count: None)
    assert set(task.score(predictions)) == {"accuracy"}
    right = [Prediction("", r, (r,)) for r in ("thanks", "repair")]
    assert task.score([*right, Prediction("", "repair", ("thanks",))]) == {"accuracy": 2 / 3}


def test_scores_of_written_texts():
    task = TextToText(source="sample")
    same = Prediction("", "a b c d", ("a b c d",), nll=math.log(4), tokens=2)
    assert task.score([same]) == pytest.approx({"BLEU": 100, "ROUGE_L": 100, "perplexity": 2})
    foreign = Prediction("", "x", ("a b c d",))
    assert task.score([foreign])["perplexity"] is None
    # Case counts, all references do, and which text is the answer.
    short = Prediction("", "a b c d", ("A B C D E", "a b c d e"))
    assert task.score([short])["BLEU"] == pytest.approx(100 * math.exp(1 - 5 / 4))
    assert task.score([Prediction("", "A B C D", ("a b c d",))])["BLEU"] < 1
    for name in ("sacrebleu", "rouge", "perplexity", f"cut to {task.max_length} tokens"):
        assert name in task.signature()
    assert LanguageModeling().score([same]) == {"perplexity": pytest.approx(2)}


def test_synthetic_records_are_written_with_the_columns_of_the_settings(tmp_path):
    file = lines(tmp_path / "a.jsonl", [{"q": "one", "a": "eins"}])
    columns = {"source_column": "q", "target_column": "a"}
    task = TextToText(train_file=file, **columns)
    task.write_records(task.rows("train"), ["uno"], tmp_path / "new.jsonl")
    again = TextToText(train_file=file, synthetic=str(tmp_path / "new.jsonl"), **columns)
    assert again.records("train") == [TextRecord(("one",), "uno")]
    assert again.labels() == ["synthetic training records"]
    texts = LanguageModeling(train_file=file, text_column="q")
    texts.write_records(None, ["zwei"], tmp_path / "texts.jsonl")
    again = LanguageModeling(synthetic=str(tmp_path / "texts.jsonl"), text_column="q")
    assert again.records("train") == [TextRecord((), "zwei")]


# The sample, and the command line.


@pytest.mark.parametrize("name", TASKS)
def test_the_sample_has_users_of_every_size_and_disjoint_splits(name):
    task = load_task({"name": name, "source": "sample", "unit": "user", "user_column": "user"})
    users = {split: {row.values["user"] for row in task.rows(split)} for split in SPLITS}
    assert not users["train"] & users["dev"]
    assert not (users["train"] | users["dev"]) & users["test"]
    owners = task.owners()
    counts = [owners.count(user) for user in users["train"]]
    assert min(counts) == 1
    assert max(counts) > 4 * 8
    assert len(task.records("train")) == len(owners) > 300


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_data_check_counts_records_users_and_lengths(tmp_path):
    rows = [{"text": "abc", "user": f"u{n % 3}"} for n in range(10)] + [{"text": "b", "user": "v"}]
    file = lines(tmp_path / "train.jsonl", rows)
    scored = [{"text": "abc", "user": "w"}, {"text": "of u1", "user": "u1"}]
    test = lines(tmp_path / "test.jsonl", scored)
    own = [f"task.train_file={file}", f"task.test_file={test}"]
    result = invoke(
        "data", "check", "language_modeling", *own, "task.unit=user", "task.user_column=user",
        "task.records_per_user=3",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    for part in (
        "language_modeling train: 11 records, 11 instances",
        "columns: text, user",
        "characters in a record: 1 to 3, median 3",
        "4 users; records of one: 1 to 4, median 3",
        "1 users have more than 3 records",
        "language_modeling dev: task language_modeling was given no dev split",
        "1 records are also in the training data",
        "1 users are also in the training data: no guarantee covers scores of what they wrote",
    ):
        assert part in said
    # Rows that are only scored need no names.
    bare = lines(tmp_path / "bare.jsonl", [{"text": "abc"}])
    words = [own[0], f"task.test_file={bare}", "task.unit=user", "task.user_column=user"]
    result = invoke("data", "check", "language_modeling", *words)
    assert result.exit_code == 0, result.output
    assert result.output.count("users; records of one") == 1
    assert str(file) in invoke("data", "where", "language_modeling", *own).output
    result = invoke("data", "check", "text2text", *own)
    assert result.exit_code == 2
    assert "line 1: no column 'source'; found 'text', 'user'" in " ".join(result.stderr.split())
    result = invoke("data", "check", own[0])
    assert "expected the task first, as in dpft data check text2text task.train_file" in " ".join(
        result.stderr.split()
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["task=classification"], "expected the task first, as in dpft data check classification"),
        (["text2text", "task=classification"], "got task=classification beside the task text2text"),
    ],
)
def test_data_check_is_of_one_task(typed, said):
    result = invoke("data", "check", *typed, "task.source=sample")
    assert result.exit_code == 2
    told = " ".join(result.stderr.split())
    assert said in told
    assert "text2text task=" not in told


def test_data_sample_writes_what_a_folder_may_hold(tmp_path):
    result = invoke("data", "sample", "classification", "--to", str(tmp_path))
    assert result.exit_code == 0, result.output
    own = [f"task.data_dir={tmp_path}", "task.classes=from_data"]
    result = invoke("data", "check", "classification", *own)
    assert result.exit_code == 0, result.output
    assert "labels: opening hours" in result.output


def test_the_command_that_uses_a_sample_is_quoted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("data", "sample", "classification", "--to", "my dir (1)")
    advised = shlex.split(result.output.splitlines()[-1].partition("use it with: dpft train ")[2])
    assert compose(advised)["task"]["data_dir"] == "my dir (1)"


def test_data_sample_and_get_leave_files_of_others_as_they_are(tmp_path, monkeypatch):
    mine = tmp_path / "train.jsonl"
    mine.write_text('{"text": "my only copy", "label": "a"}\n')
    command = "data", "sample", "classification", "--to", str(tmp_path)
    result = invoke(*command)
    assert result.exit_code == 2
    assert f"{mine} exists; give another folder: --to FOLDER" in " ".join(result.stderr.split())
    assert [file.name for file in tmp_path.iterdir()] == ["train.jsonl"]
    assert "my only copy" in mine.read_text()
    mine.rename(tmp_path / "notes.txt")
    for _ in range(2):  # what was written before is the same
        result = invoke(*command)
        assert result.exit_code == 0, result.output
        assert "train.jsonl" in result.output
        assert "notes.txt" not in result.output
    monkeypatch.setattr(sources, "_load_hub", lambda *_: datasets.Dataset.from_dict({"a": [1]}))
    mine = tmp_path / "train.parquet"
    mine.write_text("my only copy")
    result = invoke("data", "get", "e2e", "--to", str(tmp_path))
    assert result.exit_code == 2
    assert f"{mine} exists; give another folder: --to FOLDER" in " ".join(result.stderr.split())
    assert mine.read_text() == "my only copy"
    mine.unlink()
    for _ in range(2):
        assert invoke("data", "get", "e2e", "--to", str(tmp_path)).exit_code == 0
    assert not list(tmp_path.glob(".*"))


def test_the_size_of_ones_own_data_must_be_told_to_account():
    result = invoke("account", "task=text2text")
    assert result.exit_code == 2
    assert "Type task.train_size=N" in " ".join(result.stderr.split())
    typed = ["task=text2text", "task.train_size=5000", "task.unit=user", "task.user_column=u"]
    result = invoke("account", *typed)
    assert result.exit_code == 0, result.output
    assert "5,000 users" in result.output


# Whole runs.

SMALL = ["task.limit_eval=2", "optim.batch_size=12", "optim.steps=2", "threads=1", "name=own"]


def run(tmp_path, *overrides):
    return run_experiment(parse(compose([*SMALL, f"runs_dir={tmp_path}", *overrides])))


def test_a_run_over_users_says_what_is_protected(tmp_path):
    outcome = run(
        tmp_path, "task=language_modeling", "task.source=sample", "task.unit=user",
        "task.user_column=user", "task.records_per_user=3", "task.max_length=24",
        "optim.microbatch_tokens=300",
    )  # fmt: skip
    record = outcome.record
    mechanism, privacy = record["mechanism"], record["privacy"]
    task = LanguageModeling(source="sample", unit="user", user_column="user")
    users = len(set(task.owners()))
    assert (mechanism["dataset_size"], mechanism["batch_size"]) == (users, 12)
    assert mechanism["sampling_rate"] == 12 / users
    assert privacy["delta"] == 1e-5
    again = accounting.epsilon_rdp(
        sampling_rate=12 / users,
        noise_multiplier=mechanism["noise_multiplier"],
        steps=2,
        delta=1e-5,
    )
    assert privacy["epsilon"]["rdp"] == pytest.approx(again)
    unit = (
        "all training records that name the same user (column user); at most 3 of them, drawn "
        "anew, take part in a step"
    )
    assert privacy["unit"] == unit
    assert privacy["neighbouring"] == "add or remove one user"
    assert privacy["statement"].endswith(f"for adding or removing one user; one user is {unit}")
    header = runs.read_ledger(outcome.path / "ledger.jsonl").header
    assert header["unit"] == unit
    assert header["mechanism"] == mechanism
    card = (outcome.path / "model/README.md").read_text()
    assert f"| Unit of privacy | {unit} |" in card
    assert "| Neighbouring relation | add or remove one user |" in card
    assert f"(training users {users:,})" in card
    # Not how many records there are, of which one user may have any number.
    assert record["dataset"]["counts"] == {"training users": users}
    (perplexity,) = record["scores"]["test"]["metrics"].values()
    assert 1 < perplexity < math.inf
    metrics = (outcome.path / "private/metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["records"] < 40 for line in metrics)


def test_a_run_over_ones_own_file(tmp_path):
    rows = [{"question": f"thing {n}", "answer": f"a note on {n}"} for n in range(40)]
    file = table(tmp_path / "mine.csv", rows)
    outcome = run(
        tmp_path, "task=text2text", f"task.train_file={file}", "task.source_column=question",
        "task.target_column=answer", "task.test_share=0.2", "task.max_length=32", "decode=greedy",
        "decode.max_new_tokens=3",
    )  # fmt: skip
    counts = outcome.record["dataset"]["counts"]["train"]
    assert 20 < counts < 40
    assert outcome.record["mechanism"]["dataset_size"] == counts
    metrics = outcome.record["scores"]["test"]["metrics"]
    assert set(metrics) == {"BLEU", "ROUGE_L", "perplexity"}
    assert 1 < metrics["perplexity"] < math.inf
    assert (
        "test split: about 0.2 of the records in the training data, held out"
        in (outcome.record["labels"])
    )
    assert outcome.record["privacy"]["statement"].endswith(
        "one record is one row of the training data: a source text with its target text"
    )


def test_other_owners_do_not_continue_a_run(tmp_path, monkeypatch):
    rows = [{"text": f"text number {n}", "who": f"u{n % 20}"} for n in range(40)]
    file = tmp_path / "mine.jsonl"
    lines(file, rows)
    overrides = [
        "task=language_modeling", f"task.train_file={file}", "task.test_share=0.2",
        "task.max_length=16", "task.unit=user", "task.user_column=who", "optim.batch_size=4",
    ]  # fmt: skip

    def stop(*arguments, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpft.training.run._decode_stage", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, *overrides)
    task = LanguageModeling(
        train_file=str(file), test_share=0.2, unit="user", user_column="who", text_column="text"
    )
    one, other = sorted(set(task.owners()))[:2]
    given = next(n for n, row in enumerate(rows) if row["who"] == one)
    rows[given] = rows[given] | {"who": other}  # the same texts in the same order, as many users
    lines(file, rows)
    with pytest.raises(runs.LedgerMismatchError, match="data"):
        run(tmp_path, *overrides)
