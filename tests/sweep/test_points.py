"""Points are expanded as Hydra expands them, and checked before anything runs."""

import re

import pytest

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.runs import config_hash
from dpft.runs.folders import run_path
from dpft.sweep.points import (
    ParsedOverrides,
    chooses_by_test,
    make_plan,
    parse_arguments,
    read_list,
)


def plan(*overrides, lines=()):
    return make_plan(ParsedOverrides(overrides), lines)


def test_a_grid_is_every_combination_and_the_last_value_moves_fastest():
    points = plan("eps=3,8", "task=e2e", "seed=range(1,3)").points
    expected = [(f"eps={eps}", "task=e2e", f"seed={seed}") for eps in (3, 8) for seed in (1, 2)]
    assert [point.overrides for point in points] == expected
    alone = parse(compose(["eps=8", "seed=2"]))
    assert points[-1].digest == config_hash(alone.identity())
    assert points[-1].path == run_path(alone)
    assert points[-1].private


def test_a_list_is_run_with_every_point_of_the_words():
    lines = [("clip=none",), ("clip=bk", "eps=8")]
    got = plan("seed=1,2", lines=lines)
    expected = [(f"seed={seed}", *line) for seed in (1, 2) for line in lines]
    assert [point.overrides for point in got.points] == expected
    assert [p.private for p in got.points] == [False, True, False, True]


def test_equal_configurations_are_merged():
    got = plan("optim.lr=0.001,1e-3,0.002")
    assert (len(got.points), got.merged) == (2, 1)
    assert [run.optim.lr for run in got.runs] == [0.001, 0.002]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["eps=8", "privacy.epsilon=8.0"], ["privacy.epsilon=8"]),
        (["sampling=shuffle", "privacy.sampling=shuffle"], ["privacy.sampling=shuffle"]),
        (["clip=none", "eps=3"], ["clip=none", "eps=8", "privacy.delta=1e-6"]),
        (["privacy.noise_multiplier=1", "eps=null"], ["privacy.noise_multiplier=1"]),
    ],
)
def test_one_run_has_one_name_however_it_was_typed(one, other):
    """Else it would be trained twice, and paid for twice."""
    got = plan(lines=[one, other])
    assert (len(got.points), got.merged) == (1, 1)


@pytest.mark.parametrize(
    ("words", "lines", "message"),
    [
        (["eps=3,0"], [], r"point 2 of 2 (eps=0): privacy.epsilon is 0"),
        ([], [["eps=3"], ["esp=3"]], r"point 2 of 2 (esp=3): unknown setting esp"),
        (["name=x", "seed=1,2"], [], "two points would share the folder runs/x: 'name=x seed=1'"),
        (["name=x,y"], [], "'name=x' and 'name=y' are the same settings in two folders, runs/x"),
        ([], [["runs_dir=x"], ["runs_dir=y"]], "each spends a budget"),
        (["hydra/launcher=basic,joblib"], [], "Hydra's own settings are not swept"),
        (["eps=interval(1,3)"], [], "does not support sweep type"),
        (["seed=1,[2"], [], "cannot read"),
        (["hydra.sweeper._target_=a.Other"], [], "got Other, which chooses points by the scores"),
    ],
)
def test_a_point_that_could_not_run_is_told_beforehand(words, lines, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        plan(*words, lines=lines)


def test_a_preset_does_not_bring_force_into_a_sweep(tmp_path):
    own = tmp_path / "experiment"
    own.mkdir()
    (own / "own.yaml").write_text("# @package _global_\nforce: true\n")
    with pytest.raises(ConfigError, match=r"point 1 of 2 .*got force=true; .*every finished point"):
        make_plan(ParsedOverrides(("+experiment=own", "seed=1,2"), tmp_path))


def test_flags_and_overrides_in_any_order(tmp_path):
    words = parse_arguments(["eps=1,2", "-m", "--config-dir", str(tmp_path), "+experiment=demo"])
    assert words.overrides == ("eps=1,2", "+experiment=demo")
    assert words.config_dir == tmp_path


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--epsilon 3", "there is no flag --epsilon; did you mean 'privacy.epsilon'?"),
        ("--cfg job", "does not take Hydra's flag --cfg"),
        ("--config-dir nowhere", "expected a folder"),
        ("++force=true", "type dpft train"),
        ("sweep.list=x", "type --list FILE"),
        ("hydra.searchpath=[file://x]", "type --config-dir DIR"),
    ],
)
def test_what_a_sweep_does_not_take(typed, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_arguments(typed.split())


def test_a_list_has_a_point_a_line(tmp_path):
    file = tmp_path / "points.txt"
    file.write_text("# seeds\nseed=1 eps=3\n\nseed=2  'task.data_dir=\"a b\"' # the odd one\n")
    assert read_list(file) == (("seed=1", "eps=3"), ("seed=2", 'task.data_dir="a b"'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed=1\nresume=x\n", "points.txt, line 2: got resume=x in a sweep"),
        ("seed=1\n-m seed=2\n", "points.txt, line 2: got '-m'; expected NAME=VALUE"),
        ("sweep.metric=BLEU\n", "line 1: got 'sweep.metric=BLEU'"),
        ("seed='1\n", "line 1: No closing quotation"),
        ("\n# nothing\n", "holds no points"),
    ],
)
def test_a_bad_list_is_refused_with_its_line(tmp_path, text, message):
    file = tmp_path / "points.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_list(file)


def test_a_choice_by_test_scores_is_noted():
    assert chooses_by_test(plan("task=e2e", "optim.lr=1e-3,2e-3"))
    assert not chooses_by_test(plan("task=e2e", "optim.lr=1e-3,2e-3", "decode.split=dev"))
    assert not chooses_by_test(plan("eps=3,8", "seed=1,2", "task=e2e,dart"))
