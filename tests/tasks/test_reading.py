"""One pass over one's own data, and what is kept of it."""

import json

import pytest

from dpft.config.errors import DataError, SplitError
from dpft.runs.array_store import ArrayStore
from dpft.tasks import kept_readings
from dpft.tasks.base import SPLITS, fingerprint
from dpft.tasks.keeping import Keeping
from dpft.tasks.own_texts import LanguageModeling, TextClassification, TextToText
from dpft.tasks.table_files import JsonLines

ROWS = [
    {"user": f"u{n % 23}", "source": f"s{n}", "target": f"t{n % 90}", "label": "ab"[n % 2]}
    for n in range(200)
]
USERS = {"unit": "user", "user_column": "user"}
SHARES = {"dev_share": 0.2, "test_share": 0.3}
SETTINGS = [{}, {"limit_train": 7}, SHARES, USERS, USERS | SHARES, SHARES | {"limit_train": 9}]


def own(folder, rows=ROWS, cls=TextToText, **settings):
    file = folder / "train.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
    return cls(train_file=str(file), **settings)


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_pass_tells_the_fingerprint_of_the_records(tmp_path, settings):
    task = own(tmp_path, **settings)
    records = list(task.records("train"))
    assert len(records) == settings.get("limit_train", len(records))
    owners = task.owners()
    assert task.known_fingerprint == fingerprint(records, None if owners is None else [*owners])


def test_labels_are_in_the_fingerprint(tmp_path):
    settings = {"text_column": "source", "classes": ("a", "b")}
    task = own(tmp_path, cls=TextClassification, **settings)
    assert task.known_fingerprint == fingerprint(list(task.records("train")))
    assert "labels: a 100, b 100" in task.details("train")


def test_a_split_that_nobody_asked_for_is_none(tmp_path):
    task = own(tmp_path, test_share=0.3)
    assert task.records("test")
    with pytest.raises(SplitError, match=r"given no dev split.*task\.dev_share=0\.1"):
        task.records("dev")


def test_the_file_is_parsed_once(tmp_path, monkeypatch):
    task, passes = own(tmp_path, **USERS, **SHARES), []
    scan = JsonLines.scan
    monkeypatch.setattr(JsonLines, "scan", lambda file: passes.append(file) or scan(file))
    for split in SPLITS:
        assert len(task.instances(split)) == len(task.records(split))
        assert task.details(split)
    assert task.owners()
    assert task.remarks() == []
    assert len(passes) == 1


def test_the_first_of_several_clashes_of_names_is_told(tmp_path):
    names = ["cy", "ann", "bob", "bob ", "ann ", "cy"]
    rows = [row | {"user": name} for row, name in zip(ROWS, names, strict=False)]
    for settings in (USERS, USERS | SHARES):
        message = r"line 4: user 'bob ' differs from 'bob' \(.*line 3\)"
        with pytest.raises(DataError, match=message):
            own(tmp_path, rows, **settings).records("train")


COPIES = [
    {"source": source, "target": "t", "user": f"u{n}"}
    for n, source in enumerate(
        [
            "Caf\u00e9 au lait",
            "cafe\u0301  AU\tlait",
            "Stra\u00dfe",
            "STRASSE",
            "one",
            "two",
            "one",
            "One",
        ]
    )
]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (COPIES, "1 (one occurs 2 times) word for word, 4 (one occurs 3 times) apart from"),
        (COPIES[:4], "none word for word, 2 (one occurs 2 times) apart from"),
        (COPIES[:1] * 501, "500 (one occurs 501 times) word for word, 500 (one occurs 501 times)"),
    ],
)
def test_copies_of_records_are_counted(tmp_path, rows, said, keeping):
    for task in (own(tmp_path, rows), *(kept(own(tmp_path, rows), keeping) for _ in range(2))):
        (remark,) = task.remarks()
        assert f"training records repeat others: {said}" in remark
        assert "task.unit=user" in remark
        assert remark in task.details("train")
    assert own(tmp_path, rows, **USERS).remarks() == []
    assert own(tmp_path, COPIES[3:6]).remarks() == []


# Keeping.


@pytest.fixture
def keeping(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_readings, "LARGE", 0)

    def no(text):
        raise AssertionError(text)

    return Keeping(ArrayStore(tmp_path / "private/cache"), no, no)


def facts(task):
    return [
        (task.rows(split), task.records(split), task.details(split))
        for split in (SPLITS if task.test_share else SPLITS[:1])
    ] + [task.owners(), task.known_fingerprint, task.remarks()]


def kept(task, keeping, told=lambda count: None):
    task.keep_in(keeping, told)
    return task


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_was_kept_is_what_was_read(tmp_path, settings, keeping, monkeypatch):
    fresh = facts(own(tmp_path, **settings))
    assert facts(kept(own(tmp_path, **settings), keeping)) == fresh
    with monkeypatch.context() as patch:
        patch.setattr(JsonLines, "scan", None)  # nothing is parsed but what is asked for
        assert facts(kept(own(tmp_path, **settings), keeping)) == fresh


def test_other_data_or_settings_are_read_anew(tmp_path, keeping):
    first = kept(own(tmp_path, **SHARES), keeping).known_fingerprint
    for rows, settings in ((ROWS[::-1], SHARES), (ROWS, SHARES | {"split_seed": 1})):
        task = kept(own(tmp_path, rows, **settings), keeping)
        assert task.known_fingerprint == own(tmp_path, rows, **settings).known_fingerprint != first
    swapped = SHARES | {"source_column": "target", "target_column": "source"}
    assert kept(own(tmp_path, **swapped), keeping).known_fingerprint != first


def test_what_does_not_change_the_reading_does_not_repeat_it(tmp_path, keeping, monkeypatch):
    first = kept(own(tmp_path, **SHARES), keeping).known_fingerprint
    monkeypatch.setattr(JsonLines, "scan", None)
    task = kept(own(tmp_path, **SHARES, max_length=9, before="Now: "), keeping)
    assert task.known_fingerprint == first


class Mine(LanguageModeling):
    """Of another module, whose code may be another next time."""


def test_what_a_class_of_ones_own_reads_is_not_kept(tmp_path, keeping):
    task = kept(own(tmp_path, cls=Mine, text_column="target"), keeping)
    assert len(task.records("train")) == len(ROWS)
    assert not keeping.store.folder.exists()
