"""Which records stand for a cell."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.reproduce.tables.record_index import make_index, match_key
from dpft.runs.folders import marked
from dpft.runs.record import read_record, write_table
from dpft.tasks.scores import packed
from tests.reproduce.tables.example import plan, run_of, table, write_record
from tests.runs.example import example_guarantee

A_CHOICE = {"metric": "BLEU", "best": "highest", "candidates": 2, "mean": 2.0, "shape": 1.0}
A_CHOICE["mechanisms"] = []
COLUMNS = {column.key: column for column in table().columns}


def test_records_that_a_hand_changed_are_named_and_left_out(tmp_path):
    one = run_of(plan(), "full")
    for seed, name in enumerate(("good", "flipped", "share")):
        metrics = {"accuracy": -0.25 if name == "share" else 1.0}
        write_record(tmp_path / name, one, seed=seed, metrics=metrics)
        (tmp_path / name / "DONE").write_text(marked(tmp_path / name, ""))
    file = tmp_path / "flipped/record.json"
    file.write_bytes(file.read_bytes().replace(b'"seed": 1', b'"seed": 3', 1))
    index = make_index([tmp_path])
    assert [found.path.name for found in index.of(one.key)] == ["good"]
    names = [Path(line.partition(":")[0]).name for line in index.damaged]
    assert names == ["flipped", "share"]


def test_secret_trials_and_runs_of_another_guarantee_stand_in_no_table(tmp_path):
    one = run_of(plan(), "full")
    selection = tmp_path / "runs/selections/one"
    write_record(tmp_path / "runs/plain", one)
    write_record(tmp_path / "runs/run.old-1", one)  # was set aside
    spent = {"mechanism": {"steps": 8, "repeated": 3}, "privacy": example_guarantee()}
    write_record(tmp_path / "runs/again", one, **spent)
    write_record(selection / "private/trials/a", one, seed=1)
    write_record(selection / "chosen", one, seed=1, selection=A_CHOICE)
    (selection / "selection.json").write_text("{}")
    index = make_index([tmp_path / "runs"])
    assert [found.path.name for found in index.of(one.key)] == ["plain"]
    names = [Path(line.partition(":")[0]).name for line in index.damaged]
    assert names == ["again", "chosen"]
    with pytest.raises(ConfigError, match="secret trials"):
        make_index([selection / "private/trials"])


def test_scores_need_split_and_metric_and_only_a_share_has_an_error(tmp_path):
    metrics = {"bleu": 0.25, "ROUGE_L": None, "accuracy": 0.5}
    write_record(tmp_path / "x", run_of(plan(), "full"), metrics=metrics)
    (found,) = make_index([tmp_path]).of(run_of(plan(), "full").key)
    assert found.score(COLUMNS["bleu"]) == pytest.approx(25)  # the second of two names
    assert found.score(COLUMNS["rouge_l"]) is None
    assert found.score(COLUMNS["dev_bleu"]) is None
    assert found.has_scores("test")
    assert not found.has_scores("dev")
    accuracy = replace(COLUMNS["bleu"], metrics=("accuracy",))
    assert found.sampling_error(accuracy) == pytest.approx(100 * 0.5 / 634**0.5)
    assert found.sampling_error(COLUMNS["bleu"]) == 0


def test_right_answers_are_read_where_they_agree_with_the_accuracy(tmp_path):
    column = replace(COLUMNS["bleu"], metrics=("accuracy",))
    section = {"metrics": {"accuracy": 0.75}, "examples": 4, "signature": "x", "references": "d"}
    wrong = ((True, True, False, False), 9 * (True,))
    cases = {"good": packed((True, True, True, False)), "none": None, "torn": "?"}
    cases |= {f"wrong{number}": packed(bits) for number, bits in enumerate(wrong)}
    one = run_of(plan(), "full")
    for name, text in cases.items():
        given = {} if text is None else {"correct": text}
        write_record(tmp_path / name, one, scores={"test": section | given})
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


ELSEWHERE = (
    *("task.data_dir=D", "task.source=files", "optim.microbatch_tokens=8"),
    *("privacy.noise_seed=5", "decode.split=dev", "decode.batch_size=8", "model.path=copies/gpt2"),
)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (ELSEWHERE, True),
        (["clip=bk"], True),  # the same clipped sums
        (["clip=materialised"], True),
        (["clip=per_layer"], False),
        (["clip=flat_adaptive"], False),
        (["clip=none"], False),
        (["clip.threshold=0.5"], False),
        (["optim.lr=0.1"], False),
        (["task.limit_train=10"], False),
        (["task.source=sample"], False),
        (["decode.beams=2"], False),
        (["eps=99"], False),
    ],
)
def test_what_changes_a_score_is_another_experiment(words, same):
    usual = ["task=e2e", "model=gpt2", "clip=ghost", "eps=3"]
    one, other = compose(usual), compose([*usual, *words])
    del other["optim"]["sampling_rate"]  # not in a record, since it is the default
    assert (match_key(one) == match_key(other)) is same
