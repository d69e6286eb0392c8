"""Recipes: each is listed, copied, complete and valid, and each is run at a small size."""

import json
import re
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.recipe import RECIPES, expanded, settings_in
from dpft.cli.validate import check
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.training.run import run_experiment

# Settings that decide how much is computed, and on what; all others are the recipe's.
SMALL = (
    *("optim.steps=2", "optim.batch_size=8", "device=cpu"),
    *("threads=1", "task.limit_eval=2", "decode.max_new_tokens=4"),
    # Of noise that is given; to find that of a budget takes longer than all else.
    *("eps=null", "privacy.noise_multiplier=1"),
)
STAND_INS = {
    **dict.fromkeys(("gpt2", "gpt2-xl"), "random-gpt2"),
    **dict.fromkeys(("roberta-base", "roberta-large"), "random-roberta"),
    # TinyLlama, Llama 3.1; SmolLM2 is of the Llama type too.
    **dict.fromkeys(("custom", "llama-3-8b", "smollm2-135m"), "random-llama"),
    "flan-t5-base": "random-t5",
    "vit-base": "random-vit",
}


NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def file_of(name):
    return RECIPES / f"{name}.yaml"


def test_a_copy_is_the_file_and_overwrites_nothing(tmp_path):
    place = tmp_path / "mine.yaml"
    assert invoke("recipe", "lora-chat-8b", str(place)).exit_code == 0
    assert place.read_text() == file_of("lora-chat-8b").read_text()
    assert invoke("recipe", "glue-sst2", str(place)).exit_code == 2
    assert place.read_text() == file_of("lora-chat-8b").read_text()
    assert "did you mean 'lora-chat-8b'" in invoke("recipe", "lora-chat-8").stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_how_it_is_run_and_is_valid(name):
    text = file_of(name).read_text()
    assert f"dpft recipe {name} mine.yaml" in text
    assert re.search(r"dpft (train|sweep) --config mine\.yaml", text)
    assert max(map(len, text.splitlines())) <= 100
    words = [word for word in settings_in(file_of(name)) if not word.startswith("hydra")]
    # Of a sweep the first point.
    words = [re.sub(r"=choice\((\w+).*", r"=\1", word) for word in words]
    if "_file=" in " ".join(words) or "task.source=sample" in words:  # its size is not known
        words.append("task.train_size=20000")
    # Noise is given, whose calibration takes longer than all else.
    assert check([*words, "eps=null", "privacy.noise_multiplier=1"]) == []
    # What it chooses is said: nothing that matters is left to a default that may change.
    keys = {word.partition("=")[0] for word in words}
    assert keys >= {"task", "model", "clip", "eps", "optim.lr"}


def own_data(folder):
    """The files that recipes name, with a few records each."""
    people = [f"person {i % 20}" for i in range(60)]
    rows = {
        "notes.jsonl": [{"source": f"note {i}", "target": f"is {i}"} for i in range(60)],
        "texts.jsonl": [{"user": who, "text": f"text {i}"} for i, who in enumerate(people)],
        "chats.jsonl": [
            {
                "user": who,
                "messages": [
                    {"role": "user", "content": f"Is it {i}?"},
                    {"role": "assistant", "content": "It is."},
                ],
            }
            for i, who in enumerate(people)
        ],
    }
    for name, lines in rows.items():
        (folder / name).write_text("\n".join(map(json.dumps, lines)))
    labels = ("complaint", "question")
    lines = [f"text {i},{labels[i // 2 % 2]}" for i in range(60)]
    (folder / "train.csv").write_text("\n".join(["text,label", *lines]))


def small(name, folder, *words):
    """A recipe's run at a small size: a stand-in of its model's architecture, generated data."""
    held = settings_in(file_of(name))
    chosen = {word.partition("=")[0]: word.partition("=")[2] for word in held}
    if (own := chosen.get("task.train_file")) is not None:
        data = [f"task.train_file={folder / own}", "task.test_share=0.2"]
    else:
        data = ["task.source=sample", "task.limit_train=40"]
    if "vit" not in chosen["model"]:
        data.append("task.max_length=64")
    # Other settings of the model stand, where another one is typed.
    data += [w for w in held if re.match(r"model\.(tied|checkpointing)=", w)]
    data.append("optim.microbatch_tokens=512")
    return [
        *("--config", str(file_of(name)), f"runs_dir={folder}", *data, *SMALL, *words),
        *([] if chosen["model"] == "tiny" else [f"model={STAND_INS[chosen['model']]}"]),
    ]


def check_record(name, record):
    """It is the recipe's run, private and scored, with its settings but for the size."""
    held = dict(word.split("=", 1) for word in settings_in(file_of(name)))
    assert record["training"]["steps"] == 2
    assert record["privacy"]["epsilon"]["pld"] > 0
    config = record["config"]
    assert record["scores"][config["decode"]["split"]]["metrics"]
    assert config["task"]["name"] == held["task"]
    assert config["adapt"]["name"] == held.get("adapt", "full")
    assert config["optim"]["lr"] == float(held["optim.lr"])
    if held.get("task.unit") == "user":
        assert "name the same user" in record["privacy"]["unit"]


# Runs of several processes, and sweeps, have tests of their own.
LEFT_OUT = ("fsdp-8gpus", "pipeline-4gpus", "slurm-sweep")


@pytest.mark.parametrize("name", [n for n in NAMES if n not in LEFT_OUT])
def test_a_recipe_runs_at_a_small_size(name, tmp_path, quick_scores):
    own_data(tmp_path)
    tracked = ["track=csv"] if find_spec("tensorboard") is None else []
    words = small(name, tmp_path, *(tracked if name == "watched-run" else ()))
    check_record(name, run_experiment(parse(compose(expanded(words)))).record)


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
