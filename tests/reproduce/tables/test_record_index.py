"""Which records stand for a cell."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpft.config.errors import ConfigError
from dpft.config.folder import conf_dir
from dpft.reproduce.tables.record_index import make_index, usual_folders
from dpft.runs.finished import marked
from dpft.runs.record import read_record, write_table
from dpft.tasks.metrics.shown import packed
from tests.reproduce.tables.example import plan, run_of, table, write_record
from tests.runs.example import example_guarantee

ROOT = Path(__file__).resolve().parents[3]

A_CHOICE = {"metric": "BLEU", "best": "highest", "candidates": 2, "mean": 2.0, "shape": 1.0}
A_CHOICE["mechanisms"] = []


def columns():
    return {column.key: column for column in table().columns}


def test_records_are_found_at_any_depth_by_what_they_are(tmp_path):
    one, other = run_of(plan(), "full"), run_of(plan(), "LoRA")
    write_record(tmp_path / "a" / "b", one, seed=3)
    write_record(tmp_path / "c", other)
    index = make_index([tmp_path])
    (found,) = index.of(one.key)
    assert (found.path, found.seed) == (tmp_path / "a" / "b", 3)
    assert [f.path.name for f in index.of(other.key)] == ["c"]
    assert index.of("nothing") == ()
    assert index.tasks == {"e2e"}
    assert not index.damaged


def test_damaged_records_are_named_and_the_others_count(tmp_path):
    one = run_of(plan(), "full")
    write_record(tmp_path / "good", one)
    for name, text in (("torn", '{"config'), ("empty", '{"schema_version": 1}'), ("old", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(text)
    index = make_index([tmp_path])
    assert len(index.of(one.key)) == 1
    assert [Path(line.partition(":")[0]).name for line in index.damaged] == ["empty", "old", "torn"]


def test_a_finished_run_whose_record_was_changed_stands_in_no_table(tmp_path):
    """Another digit of an epsilon or a score is a record like any other: only the marker tells."""
    one = run_of(plan(), "full")
    write_record(tmp_path / "good", one)
    write_record(tmp_path / "flipped", one, seed=1)
    for name in ("good", "flipped"):
        (tmp_path / name / "DONE").write_text(marked(tmp_path / name, "").spelled())
    file = tmp_path / "flipped/record.json"
    file.write_bytes(file.read_bytes().replace(b'"seed": 1', b'"seed": 3', 1))
    index = make_index([tmp_path])
    assert [found.path.name for found in index.of(one.key)] == ["good"]
    (said,) = index.damaged
    assert "record.json is not what it was" in said
    assert "resume=" in said


@pytest.mark.parametrize("value", [1.5, -0.25])
def test_a_share_that_is_none_is_named_with_its_record(tmp_path, value):
    """What a hand wrote into it: its standard error would be the root of a negative number."""
    one = run_of(plan(), "full")
    write_record(tmp_path / "good", one, metrics={"accuracy": 1.0})
    write_record(tmp_path / "edited", one, metrics={"accuracy_matched": value})
    index = make_index([tmp_path])
    assert [found.path.name for found in index.of(one.key)] == ["good"]
    (said,) = index.damaged
    assert f"{tmp_path / 'edited' / 'record.json'}: its test accuracy_matched is {value}" in said
    assert "expected a share from 0 to 1" in said


def test_runs_set_aside_do_not_count(tmp_path):
    one = run_of(plan(), "full")
    write_record(tmp_path / "run.old-1", one)
    assert make_index([tmp_path]).records == {}


def test_secret_trials_and_what_was_chosen_by_its_score_stand_in_no_table(tmp_path):
    one = run_of(plan(), "full")
    selection = tmp_path / "runs/selections/one"
    write_record(tmp_path / "runs/plain", one)
    for name in ("a", "b"):
        write_record(selection / "private/trials" / name, one, seed=1)
    write_record(selection / "chosen", one, seed=1, selection=A_CHOICE)
    (selection / "selection.json").write_text("{}")

    index = make_index([tmp_path / "runs"])
    assert [found.path.name for found in index.of(one.key)] == ["plain"]
    (left_out,) = index.damaged
    assert left_out.startswith(f"{selection / 'chosen'}: dpft select chose it by its score")
    with pytest.raises(ConfigError, match="secret trials"):
        make_index([selection / "private/trials"])
    (selection / "selection.json").unlink()  # a private folder of any kind
    assert len(make_index([tmp_path]).of(one.key)) == 1


def test_a_run_that_spent_more_than_it_was_calibrated_to_stands_in_no_table(tmp_path):
    one = run_of(plan(), "full")
    for name, mechanism in (("once", {"steps": 8}), ("again", {"steps": 8, "repeated": 3})):
        sections = {"mechanism": mechanism, "privacy": example_guarantee()}
        write_record(tmp_path / name, one, **sections)
    index = make_index([tmp_path])
    assert [found.path.name for found in index.of(one.key)] == ["once"]
    (left_out,) = index.damaged
    assert "again: some of its steps were released twice" in left_out


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="is no folder"):
        make_index([tmp_path / "no"])


def test_scores_need_split_and_metric(tmp_path):
    one = run_of(plan(), "full")
    write_record(tmp_path / "x", one, metrics={"bleu": 0.25, "ROUGE_L": None})
    (found,) = make_index([tmp_path]).of(one.key)
    by_key = columns()
    assert found.score(by_key["bleu"]) == pytest.approx(25)  # the second of two names
    assert found.score(by_key["rouge_l"]) is None
    assert found.score(by_key["dev_bleu"]) is None
    assert found.has_scores("test")
    assert not found.has_scores("dev")


def test_right_answers_are_read_where_they_agree_with_the_accuracy(tmp_path):
    column = replace(columns()["bleu"], metrics=("accuracy",))
    section = {"metrics": {"accuracy": 0.75}, "examples": 4, "signature": "x", "references": "d"}
    wrong = ((True, True, False, False), 9 * (True,))
    cases = {"good": packed((True, True, True, False)), "none": None, "torn": "?"}
    cases |= {f"wrong{number}": packed(bits) for number, bits in enumerate(wrong)}
    one = run_of(plan(), "full")
    for name, text in cases.items():
        told = {} if text is None else {"correct": text}
        write_record(tmp_path / name, one, scores={"test": section | told})
    found = {run.path.name: run.answers(column) for run in make_index([tmp_path]).of(one.key)}
    assert found.pop("good") == ("d", (True, True, True, False))
    assert set(found) == {*cases} - {"good"}
    assert {*found.values()} == {None}


def test_runs_of_a_folders_table_count_like_those_in_files(tmp_path):
    one = run_of(plan(), "full")
    write_record(tmp_path / "b" / "file", one, seed=1)
    record = read_record(tmp_path / "b" / "file")
    last = record | {"config": record["config"] | {"seed": 2}}
    lines = {"a/first": record, "c/last": last, "c/old": record | {"privacy": {}}}
    lines["b/file"] = record  # was copied from the file beside it
    write_table(tmp_path, lines)
    index = make_index([tmp_path])
    names = [found.path.relative_to(tmp_path).as_posix() for found in index.of(one.key)]
    assert names == ["b/file", "a/first", "c/last"]
    (said,) = index.damaged
    assert said.startswith(f"{tmp_path / 'c/old'}: ")
    assert "is no run record that dpft wrote" in said


def test_committed_results_are_records_that_tables_can_use():
    assert not make_index([ROOT / "results"]).damaged


def test_results_are_found_from_any_folder_and_runs_only_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = usual_folders(("runs", "results", "results/none"))
    assert found == conf_dir().parent / "results"
    (tmp_path / "runs").mkdir()
    (tmp_path / "results").mkdir()
    assert usual_folders(("runs", "results")) == [Path("runs"), Path("results")]


def test_an_index_says_where_it_looked(tmp_path):
    assert make_index([tmp_path]).looked.startswith(f"0 records from {tmp_path};")
    assert "--runs DIR" in make_index([]).looked
