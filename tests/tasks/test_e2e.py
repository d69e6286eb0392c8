"""Reading, encoding and losses of the E2E task."""

import pytest

from dpft.config.errors import DataError
from dpft.tasks.e2e import E2E, linearise, read_csv
from tests.tasks.files import write

GOOD = 'mr,ref\n"name[Aromi], area[riverside]","Aromi, by the river."\n'


def test_an_official_file_is_read_with_its_quotes_and_line_breaks(tmp_path):
    text = 'mr,ref\n"name[A ""B""], near[C, D]","One.\nTwo, three."\nname[E],Four\n'
    assert read_csv(write(tmp_path / "a.csv", text)) == [
        ('name[A "B"], near[C, D]', "One.\nTwo, three."),
        ("name[E]", "Four"),
    ]


def test_meaning_representations_become_prompts():
    mr = "name[The Mill], eatType[coffee shop], priceRange[£20-25], near[Café, Rouge]"
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


def test_instances_are_runs_of_consecutive_equal_rows(tmp_path):
    rows = "mr,ref\nname[A],one\nname[A],two\nname[B],three\nname[A],four\n"
    for name in E2E.dataset.forms[0].files.values():
        write(tmp_path / name, rows)
    task = E2E(data_dir=str(tmp_path))
    instances = task.instances("test")
    assert [i.references for i in instances] == [("one", "two"), ("three",), ("four",)]
    assert len(task.records("train")) == 4
