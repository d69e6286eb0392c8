"""Points are expanded as Hydra expands them, and checked before anything runs."""

import pytest
import yaml

from dpft.config.compose import compose
from dpft.config.errors import ConfigError, NotInstalledError
from dpft.config.folder import conf_dir
from dpft.config.schema import parse
from dpft.runs import config_hash
from dpft.runs.folders import run_path
from dpft.sweep.arguments import ParsedOverrides
from dpft.sweep.points import labels, make_plan


def plan(*overrides, lines=()):
    return make_plan(ParsedOverrides(overrides), lines)


def test_a_grid_is_every_combination_and_the_last_value_moves_fastest():
    points = plan("eps=3,8", "task=e2e", "seed=range(1,3)").points
    assert [p.overrides for p in points] == [
        ("eps=3", "task=e2e", "seed=1"),
        ("eps=3", "task=e2e", "seed=2"),
        ("eps=8", "task=e2e", "seed=1"),
        ("eps=8", "task=e2e", "seed=2"),
    ]
    alone = parse(compose(["eps=8", "seed=2"]))
    assert points[-1].digest == config_hash(alone.identity())
    assert points[-1].path == run_path(alone)
    assert points[-1].private


def test_a_list_is_run_with_every_point_of_the_words():
    got = plan("seed=1,2", lines=[("clip=none",), ("clip=bk", "eps=8")])
    assert [p.overrides for p in got.points] == [
        ("seed=1", "clip=none"),
        ("seed=1", "clip=bk", "eps=8"),
        ("seed=2", "clip=none"),
        ("seed=2", "clip=bk", "eps=8"),
    ]
    assert [p.private for p in got.points] == [False, True, False, True]


def test_a_line_of_a_list_wins_over_the_words():
    (point,) = plan("task=e2e", "eps=3", lines=[("task=sst2", "eps=8")]).points
    assert point.digest == config_hash(parse(compose(["task=sst2", "eps=8"])).identity())


def test_equal_configurations_are_merged():
    got = plan("optim.lr=0.001,1e-3,0.002")
    assert (len(got.points), got.merged) == (2, 1)
    assert [run.optim.lr for run in got.runs] == [0.001, 0.002]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["eps=8"], ["privacy.epsilon=8"]),
        (["sampling=shuffle"], ["privacy.sampling=shuffle"]),
        (["clip=none", "eps=3"], ["clip=none", "eps=8", "privacy.delta=1e-6"]),
        (["privacy.noise_multiplier=1", "eps=null"], ["privacy.noise_multiplier=1"]),
    ],
)
def test_one_run_has_one_name_however_it_was_typed(one, other):
    """Else it would be trained twice, and paid for twice."""
    got = plan(lines=[one, other])
    assert (len(got.points), got.merged) == (1, 1)


def test_a_grid_may_have_runs_without_privacy_beside_its_budgets():
    got = plan("clip=none,bk", "eps=3,8")
    assert ([p.private for p in got.points], got.merged) == ([False, True, True], 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["eps=8"], ["eps=3"]),
        (["clip=none", "sampling=poisson"], ["clip=none", "sampling=shuffle"]),
        (["privacy.noise_seed=1"], ["privacy.noise_seed=2"]),
        (["eps=8"], ["eps=8", "privacy.delta=1e-6"]),
    ],
)
def test_what_differs_in_effect_has_two_names(one, other):
    assert len(plan(lines=[one, other]).points) == 2


@pytest.mark.parametrize(
    ("words", "lines", "message"),
    [
        (["eps=3,0"], [], r"point 2 of 2 (eps=0): privacy.epsilon is 0"),
        (["clip=bk,gohst"], [], r"point 2 of 2 (clip=gohst): clip is 'gohst'; did you mean"),
        ([], [["eps=3"], ["esp=3"]], r"point 2 of 2 (esp=3): unknown setting esp"),
        (["name=x", "seed=1,2"], [], "two points would share the folder runs/x: 'name=x seed=1'"),
        (["name=x,y"], [], "'name=x' and 'name=y' are the same settings in two folders, runs/x"),
        ([], [["runs_dir=x"], ["runs_dir=y"]], "each spends a budget of its own"),
        (["hydra/launcher=basic,joblib"], [], "Hydra's own settings are not swept"),
        (["eps=interval(1,3)"], [], "does not support sweep type"),
        (["seed=1,[2"], [], "cannot read"),
    ],
)
def test_a_point_that_could_not_run_is_told_beforehand(words, lines, message):
    with pytest.raises(ConfigError) as caught:
        plan(*words, lines=lines)
    assert message in str(caught.value)


def test_configs_of_ones_own_are_found(tmp_path):
    own = tmp_path / "experiment"
    own.mkdir()
    (own / "mine.yaml").write_text("# @package _global_\neps: 5\n")
    got = make_plan(ParsedOverrides(("+experiment=mine",), tmp_path))
    assert got.points[0].digest == config_hash(parse(compose(["eps=5"])).identity())
    assert got.runs[0].privacy.epsilon == 5


def test_an_extra_that_is_missing_is_named():
    from hydra.core.plugins import Plugins

    if "hydra_plugins.hydra_joblib_launcher" in str(Plugins.instance().discover()):
        pytest.skip("the launcher is installed")
    with pytest.raises(NotInstalledError, match=r"pip install 'dpft\[joblib\]'"):
        plan("hydra/launcher=joblib", "seed=1,2")


@pytest.mark.parametrize(
    ("name", "runs"),
    [("li2022-table5", 60), ("li2022-table6-lora", 320), ("li2022-table6-rgp", 960)],
)
def test_the_papers_searches_have_their_size(name, runs):
    """Of the file, since composing so many points takes minutes; one point of each is composed."""
    preset = yaml.safe_load((conf_dir() / "hparams_search" / f"{name}.yaml").read_text())
    params = preset["hydra"]["sweeper"]["params"]
    count = 1
    for values in params.values():
        count *= len(str(values).split(","))
    assert count == runs
    first = [f"{key}={str(values).split(',')[0]}" for key, values in params.items()]
    (point,) = plan(f"+hparams_search={name}", *first).points
    run = parse(compose(point.overrides))
    assert (run.optim.schedule, run.optim.lr, run.clip.threshold) == (
        "linear",
        0.002 if name == "li2022-table5" else 0.003,
        0.1,
    )
    assert run.decode.split == "dev"  # the paper chooses by validation BLEU (appendix I)


def test_labels_are_what_differs():
    assert labels([("a=1", "b=1"), ("a=1", "b=2")]) == ["b=1", "b=2"]
    assert labels([("a=1", "b=1")]) == ["a=1 b=1"]
    assert labels([()]) == ["the defaults"]


def test_a_preset_does_not_bring_force_into_a_sweep(tmp_path):
    own = tmp_path / "experiment"
    own.mkdir()
    (own / "own.yaml").write_text("# @package _global_\nforce: true\n")
    with pytest.raises(ConfigError, match=r"point 1 of 2 .*got force=true; .*every finished point"):
        make_plan(ParsedOverrides(("+experiment=own", "seed=1,2"), tmp_path))
