"""A run lies below ``runs_dir``, whatever its settings are called."""

import pytest

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.runs.paths import run_path


@pytest.mark.parametrize("name", ["../../x", "/x", "a/b", "a\x1b[2Jb", "a\nb"])
def test_a_models_name_leads_nowhere_else(name):
    raw = compose(["runs_dir=there"])
    raw["model"]["name"] = name
    with pytest.raises(ConfigError, match=r"model\.name"):
        run_path(parse(raw))


def test_a_models_name_is_part_of_the_folders_name():
    raw = compose(["runs_dir=there"])
    raw["model"]["name"] = ".. mine (2)"
    path = run_path(parse(raw))
    assert str(path.parent) == "there"
    assert "mine (2)" in path.name


def test_tasks_of_ones_own_keep_their_class_in_the_name():
    raw = compose(["runs_dir=there", "task=sst2", "task.name=dpft.tasks.glue:SST2"])
    assert run_path(parse(raw)).name.startswith("SST2-")


def test_a_run_without_privacy_needs_no_budget_for_its_name():
    run = parse(compose(["clip=none", "eps=null", "model.name=mine"]))
    assert run_path(run).name.startswith("e2e-mine-none-s0-")
