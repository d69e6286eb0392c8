"""Reading, encoding and losses of the E2E task."""

import pytest

from dpft.config.errors import ConfigError, DataError
from dpft.tasks import load_task
from dpft.tasks.e2e import E2E, linearise, read_csv, slots
from dpft.tasks.objectives.base import Prediction
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write

GOOD = 'mr,ref\n"name[Aromi], area[riverside]","Aromi, by the river."\n'


def test_an_official_file_is_read_with_its_quotes_and_line_breaks(tmp_path):
    text = 'mr,ref\n"name[A ""B""], near[C, D]","One.\nTwo, three."\nname[E],Four\n'
    assert read_csv(write(tmp_path / "a.csv", text)) == [
        ('name[A "B"], near[C, D]', "One.\nTwo, three."),
        ("name[E]", "Four"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mr,ref\n", "has no rows"),
        ("text,label\na,b\n", "has columns text, label; expected mr,ref"),
        (GOOD + "name[B]\n", r"line 3: got 1 cells for 2 columns"),
        (GOOD + "name[B],\n", "line 3.*neither empty"),
        (GOOD + "no attributes,text\n", r"line 3: got 'no attributes' in meaning representation"),
        (GOOD + '"name[A], food[B] area[C]",text\n', r"line 3: got 'food\[B\] area\[C\]' in"),
        (GOOD + '"name[A], food[B [c]]",text\n', r"line 3: got 'food\[B \[c\]\]' in"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_csv(write(tmp_path / "bad.csv", text))


def test_meaning_representations_become_prompts():
    mr = "name[The Mill], eatType[coffee shop], priceRange[£20-25], near[Café, Rouge]"
    assert slots(mr)[3] == ("near", "Café, Rouge")
    assert linearise(mr) == (
        "name : The Mill | eatType : coffee shop | priceRange : £20-25 | near : Café, Rouge"
    )


def test_data_is_looked_for_in_the_folder_then_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_DATA", str(tmp_path))
    write(tmp_path / "e2e" / "trainset.csv", GOOD)
    assert E2E().location == ("files", tmp_path / "e2e")
    other = tmp_path / "other"
    with pytest.raises(DataError, match=r"looked in .*other.*task\.source=sample"):
        _ = E2E(data_dir=str(other)).location
    monkeypatch.delenv("DPFT_DATA")
    with pytest.raises(DataError, match="DPFT_DATA is not set"):
        _ = E2E(source="files").location


def test_without_files_and_offline_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.delenv("DPFT_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"Set DPFT_DATA .*, go online, or type task\.source=sample"
    ):
        E2E().records("train")


def test_rows_in_the_hubs_format():
    row = {"meaning_representation": "name[A]", "human_reference": "A."}
    assert hub_rows(E2E.dataset.hub, [row]) == [("name[A]", "A.")]
    with pytest.raises(DataError, match="human_reference"):
        hub_rows(E2E.dataset.hub, [{"meaning_representation": "name[A]"}])


def test_instances_are_runs_of_consecutive_equal_rows(tmp_path):
    rows = "mr,ref\nname[A],one\nname[A],two\nname[B],three\nname[A],four\n"
    for name in E2E.dataset.forms[0].files.values():
        write(tmp_path / name, rows)
    task = E2E(data_dir=str(tmp_path))
    instances = task.instances("test")
    assert [i.references for i in instances] == [("one", "two"), ("three",), ("four",)]
    assert len(task.records("train")) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "web"}, "task.source is 'web'"),
        ({"loss": "median"}, "task.loss is 'median'"),
        ({"max_length": 1}, "task.max_length is 1"),
        ({"max_lenght": 100}, "unknown setting task.max_lenght; did you mean 'max_length'"),
        ({"limit_train": "many"}, "task.limit_train is 'many'.*expected a whole number or null"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_task({"name": "e2e", **settings})


def test_meaning_representations_are_asked_without_references(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("id,mr\n3,name[Aromi]\n")
    (asked,) = E2E().questions(path)
    assert asked.cells == {"id": "3", "mr": "name[Aromi]"}
    assert asked.instance.record.source == E2E().record(("name[Aromi]", "")).source
    path.write_text("MR\nname[Aromi]\n")  # testset.csv, as it was published
    (official,) = E2E().questions(path)
    assert (official.cells, official.instance) == ({"MR": "name[Aromi]"}, asked.instance)
    path.write_text("meaning\nname[Aromi]\n")
    with pytest.raises(DataError, match="columns meaning; expected mr"):
        E2E().questions(path)


def test_lines_of_one_reference_each_are_one_instance_where_they_say_so():
    a, b, c = (Prediction("x", "p", (text,)) for text in "abc")
    (joined,) = E2E().joined([a, b, c])
    assert joined == Prediction("x", "p", ("a", "b", "c"))
    apart = [joined, a, Prediction("y", "p", ("a",)), b, Prediction("x", "q", ("b",)), joined]
    assert E2E().joined(apart) == apart
    with pytest.raises(DataError, match='give each line its "source"'):
        E2E().joined([Prediction("", "p", (text,)) for text in "ab"])
    collapsed = [Prediction("", "p", ("a", "b")), Prediction("", "p", ("c",))]
    assert E2E().joined(collapsed) == collapsed
