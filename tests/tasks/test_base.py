"""What every task shares: loading by name, fingerprints, forms of a data set."""

import pytest

from dpft.errors import ConfigError, DataError
from dpft.objectives.records import LabelledText, TextRecord
from dpft.tasks import load_task
from dpft.tasks.base import fingerprint
from dpft.tasks.e2e import E2E


def test_the_fingerprint_tells_datasets_apart():
    a, b = TextRecord(("ab",), "c"), TextRecord(("a",), "bc")
    assert fingerprint([a]) != fingerprint([b])
    assert fingerprint([a, b]) != fingerprint([b, a])
    assert fingerprint([a]) == fingerprint([TextRecord(("ab",), "c")])
    assert fingerprint([TextRecord(("a", "b"), "c")]) != fingerprint([TextRecord(("a",), "b")])
    assert fingerprint([LabelledText(("a",), 0)]) != fingerprint([LabelledText(("a",), 1)])


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="no task 'e3e'; did you mean 'e2e'"):
        load_task({"name": "e3e"})


def test_a_task_of_ones_own_is_named_by_its_module():
    task = load_task({"name": "dpft.tasks.e2e:E2E", "max_length": 50})
    assert isinstance(task, E2E)
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_task({"name": "dpft.tasks.e2e:Nothing"})


def test_a_missing_split_is_named(tmp_path):
    (tmp_path / "testset_w_refs.csv").write_text("mr,ref\nname[A],A.\n")
    task = E2E(data_dir=str(tmp_path))
    assert len(task.records("test")) == 1
    with pytest.raises(DataError, match=r"holds no train split: no file 'trainset\.csv'"):
        task.records("train")


def test_a_folder_may_hold_the_hubs_parquet_files(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = {"meaning_representation": ["name[A]"], "human_reference": ["A."]}
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows), file)
    assert E2E(data_dir=str(tmp_path)).rows("train") == [("name[A]", "A.")]
    file.write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a parquet file"):
        E2E(data_dir=str(tmp_path)).rows("train")
