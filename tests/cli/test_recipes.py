"""Recipes: each is listed, copied, complete and valid; --config reads such files."""

import re

import pytest

from dpft.cli.inputs import RECIPES, check, expanded, settings_in
from dpft.config.errors import ConfigError
from tests.processes import invoke


def file_of(name):
    return RECIPES / f"{name}.yaml"


def first_point(name):
    """What a recipe sets; of a sweep the first point."""
    words = [word for word in settings_in(file_of(name)) if not word.startswith("hydra")]
    return [re.sub(r"=choice\(([^,)]+).*", r"=\1", word) for word in words]


def test_a_copy_is_the_file_and_overwrites_nothing(tmp_path):
    place = tmp_path / "mine.yaml"
    assert invoke("recipe", "lora-chat-8b", str(place)).exit_code == 0
    assert place.read_text() == file_of("lora-chat-8b").read_text()
    assert invoke("recipe", "glue-sst2", str(place)).exit_code == 2
    assert place.read_text() == file_of("lora-chat-8b").read_text()
    assert "did you mean 'lora-chat-8b'" in invoke("recipe", "lora-chat-8").stderr


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_a_recipe_says_how_it_is_run_and_is_valid(name):
    text = file_of(name).read_text()
    assert f"dpft recipe {name} mine.yaml" in text
    assert re.search(r"dpft (train|sweep) --config mine\.yaml", text)
    assert max(map(len, text.splitlines())) <= 100
    words = first_point(name)
    if "_file=" in " ".join(words) or "task.source=sample" in words:  # its size is not known
        words.append("task.train_size=20000")
    # Noise is given, whose calibration takes longer than all else.
    assert check([*words, "eps=null", "privacy.noise_multiplier=1"]) == []
    # What it chooses is said: nothing that matters is left to a default that may change.
    keys = {word.partition("=")[0] for word in words}
    assert keys >= {"task", "model", "clip", "eps", "optim.lr"}


def test_what_is_typed_wins_wherever_it_stands(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("task: sst2\noptim.lr: 1e-3\neps: choice(1, 3)\ntask.template: 'a = b, c'\n")
    held = ["task=sst2", "optim.lr=0.001", "eps=choice(1, 3)", 'task.template="a = b, c"']
    assert expanded(["--config", str(file)]) == held
    typed = ["seed=1", f"--config={file}", "optim.lr=5"]
    assert expanded(typed) == ["seed=1", held[0], *held[2:], "optim.lr=5"]
    # Another choice of a group: what the file sets in it was meant for its own.
    assert expanded([*typed, "task=e2e"]) == ["seed=1", held[2], "optim.lr=5", "task=e2e"]
    assert 'task.template="a = b, c"' in capsys.readouterr().err
    assert expanded(["eps=3"]) == ["eps=3"]


@pytest.mark.parametrize(
    "text", ["optim:\n  lr: 1e-3\n", "- eps\n", "", "eps: 3\neps: 4\n", "eps 3: 4\n", "3: 4\n"]
)
def test_a_file_of_something_else_is_refused(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml.*expected"):
        expanded(["--config", str(file)])
