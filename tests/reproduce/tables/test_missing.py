"""The missing runs, as commands."""

import shlex

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.reproduce.tables.missing import missing, sweep_list
from dpft.reproduce.tables.record_index import make_index
from dpft.runs.identity import config_hash
from tests.reproduce.tables.example import plan, run_of, write_record


def test_each_run_lacks_once_with_each_seed(tmp_path):
    lacking = missing(plan(), make_index([tmp_path]))
    assert len(lacking) == 4 * 2
    assert len({one.command for one in lacking}) == len(lacking)
    assert [one.seed for one in lacking] == [0, 1] * 4


def test_a_command_and_a_line_of_a_sweep_are_the_run(tmp_path):
    lacking = missing(plan(extra=('task.data_dir="a b"',)), make_index([tmp_path]))
    lines = sweep_list(lacking).splitlines()
    for one, line in list(zip(lacking, lines, strict=True))[1:3]:
        program, verb, *words = shlex.split(one.command)
        assert (program, verb, words) == ("dpft", "train", shlex.split(line))
        run = parse(compose(words))
        assert run.task["data_dir"] == "a b"
        assert config_hash(run.identity()) == one.planned.config_hash(one.seed)


def test_what_is_there_does_not_lack(tmp_path):
    full, lora = run_of(plan(), "full"), run_of(plan(), "LoRA")
    write_record(tmp_path / "a", full, 0, {"BLEU": 0.6, "ROUGE_L": 0.6})
    write_record(tmp_path / "b", lora, 7, {"BLEU": 0.6})  # another seed; ROUGE-L is not scored
    lacking = {(one.planned, one.seed) for one in missing(plan(), make_index([tmp_path]))}
    assert [seed for planned, seed in lacking if planned is full] == [1]
    assert [seed for planned, seed in lacking if planned is lora] == [0]
    asked = plan(seeds=(0, 1))
    lacking = missing(asked, make_index([tmp_path]))
    assert sorted(one.seed for one in lacking if one.planned is run_of(asked, "LoRA")) == [0, 1]


def test_a_run_that_was_not_scored_lacks(tmp_path):
    full = run_of(plan(), "full")
    write_record(tmp_path / "a", full, 0, scores={})
    lacking = missing(plan(), make_index([tmp_path]))
    assert 0 in [one.seed for one in lacking if one.planned is full]
