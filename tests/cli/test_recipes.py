"""Recipes: each is listed, copied, complete and valid; two of them are run at a small size."""

import json
import random
import re

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.run_file import expanded, settings_in
from dpft.cli.validate import check
from dpft.config import recipes
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.folder import conf_dir
from dpft.config.schema import parse
from dpft.training.run import run_experiment
from tests.processes import dpft

SMALL = (
    *("optim.steps=2", "optim.batch_size=8", "optim.microbatch_tokens=512", "device=cpu"),
    *("precision=float32", "threads=1", "task.limit_eval=2", "decode=greedy"),
    *("decode.max_new_tokens=4", "model.checkpointing=false"),
)


def invoke(*words):
    return CliRunner().invoke(app, list(words))


def file_of(name):
    return conf_dir().parent / "dpft/config/recipes" / f"{name}.yaml"


def test_a_dozen_are_listed_in_a_line_each():
    lines = invoke("cp").stdout.splitlines()
    assert [line.split()[0] for line in lines] == recipes.names()
    assert len(lines) >= 12
    assert max(map(len, lines)) <= 80


def test_a_copy_is_the_file_and_overwrites_nothing(tmp_path):
    place = tmp_path / "mine.yaml"
    assert invoke("cp", "lora-chat-8b", str(place)).exit_code == 0
    assert place.read_text() == recipes.text("lora-chat-8b")
    again = invoke("cp", "glue-sst2", str(place))
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)
    assert place.read_text() == recipes.text("lora-chat-8b")
    unknown = invoke("cp", "lora-chat-8")
    assert "did you mean 'lora-chat-8b'" in unknown.stderr


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_says_how_it_is_run_and_is_valid(name):
    text = recipes.text(name)
    assert f"dpft cp {name} mine.yaml" in text
    assert re.search(r"dpft (train|sweep) --config mine\.yaml", text)
    assert max(map(len, text.splitlines())) <= 100
    words = [word for word in settings_in(file_of(name)) if not word.startswith("hydra")]
    # Of a sweep the first point.
    words = [re.sub(r"=choice\((\w+).*", r"=\1", word) for word in words]
    if "_file=" in " ".join(words):  # of one's own: its size is not known
        words.append("task.train_size=20000")
    # Noise is given, whose calibration takes longer than all else.
    assert check([*words, "eps=null", "privacy.noise_multiplier=1"], whole=False) == []
    # What it chooses is said: nothing that matters is left to a default that may change.
    keys = {word.partition("=")[0] for word in words}
    assert keys >= {"task", "model", "clip", "eps", "optim.lr"}


def test_the_classifier_of_a_csv_file_runs_as_it_is_typed(tmp_path):
    draw = random.Random(0)
    rows = [
        f'"{draw.choice("abc")} text {i}",{draw.choice(("complaint", "question"))}'
        for i in range(60)
    ]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    typed = [
        *("--config", str(file_of("classify-csv")), "model=random-roberta"),
        *(f"task.train_file={tmp_path / 'train.csv'}", f"runs_dir={tmp_path}", "name=one", *SMALL),
    ]
    outcome = run_experiment(parse(compose(expanded(typed))))
    config = outcome.record["config"]
    # The file's, but for what was typed as well.
    assert (config["task"]["classes"], config["optim"]["schedule"]) == (
        ["complaint", "question"],
        "linear",
    )
    assert (config["model"]["name"], config["optim"]["batch_size"]) == ("random-roberta", 8)
    assert outcome.record["privacy"]["epsilon"]["pld"] <= 3
    assert "accuracy" in outcome.record["scores"]["test"]["metrics"]


def test_chats_by_lora_run_for_people(tmp_path):
    lines = [
        {
            "user": f"person {i % 20}",
            "messages": [
                {"role": "user", "content": f"Is it {i}?"},
                {"role": "assistant", "content": "It is."},
            ],
        }
        for i in range(60)
    ]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, lines)))
    typed = [
        *("--config", str(file_of("lora-chat-8b")), "model=random-llama", "task.max_length=64"),
        *(f"task.train_file={tmp_path / 'chats.jsonl'}", f"runs_dir={tmp_path}", "name=one"),
        *("task.test_share=0.2", *SMALL),
    ]
    outcome = run_experiment(parse(compose(expanded(typed))))
    assert "name the same user" in outcome.record["privacy"]["unit"]
    assert outcome.record["config"]["model"]["path"] == "random:llama"
    assert outcome.record["config"]["adapt"]["rank"] == 16


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
    ("text", "said"),
    [
        ("optim:\n  lr: 1e-3\n", "such as optim.lr: 0.001"),
        ("- eps\n", "holds no settings"),
        ("", "holds no settings"),
        ("eps: [\n", "cannot read"),
        ("eps: 3\neps: 4\n", "cannot read"),
        ("eps 3: 4\n", "expected settings as they are typed"),
        ("3: 4\n", "3"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path, text, said):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        expanded(["--config", str(file)])


def test_unknown_keys_are_told_as_on_the_command_line(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("optim.larning_rate: 1\n")
    typed = invoke("validate", "optim.larning_rate=1")
    held = invoke("validate", "--config", str(file))
    assert (held.exit_code, held.stderr) == (2, typed.stderr)
    assert "did you mean" in held.stderr


def test_train_takes_the_file_with_flags_of_hydra_beside_it(tmp_path):
    (tmp_path / "run.yaml").write_text("task: sst2\neps: 5\nmodel: minilm\n")
    shown = dpft("train", "--cfg", "job", "--config", "run.yaml", "eps=8", "-q", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for line in ("eps: 8\n", "verbosity: quiet\n", "  name: minilm\n"):
        assert line in shown.stdout


def test_choices_of_ones_own_are_checked(tmp_path):
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text("# @package _global_\neps: 5\n")
    own = ("validate", "--config-dir", str(tmp_path))
    assert invoke(*own).stdout == "ok: +experiment=mine\n"
    (folder / "worse.yaml").write_text("# @package _global_\noptim:\n  lrr: 5\n")
    told = invoke(*own)
    assert "+experiment=worse: unknown setting optim.lrr" in told.stderr
    assert invoke(*own, "+experiment=mine").exit_code == 0
    (folder / "worse.yaml").rename(folder / "demo.yaml")
    assert "demo.yaml is never read" in invoke(*own).stderr
    assert "expected a folder" in invoke("validate", "--config-dir", "nowhere").stderr
