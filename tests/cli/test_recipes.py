"""Recipes: each is listed, copied, complete and valid, and each is run at a small size."""

import json
import re
from importlib.util import find_spec

import pytest
from typer.testing import CliRunner

from dpft.cli import sweep
from dpft.cli.app import app
from dpft.cli.cp import RECIPES
from dpft.cli.run_file import expanded, settings_in
from dpft.cli.validate import check
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.runs import read_record
from dpft.training.run import run_experiment
from tests.parallel.launched import ranks
from tests.processes import dpft
from tests.test_stories import Here

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


def test_a_dozen_are_listed_in_a_line_each():
    lines = invoke("cp").stdout.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert len(lines) >= 12
    assert max(map(len, lines)) <= 80


def test_a_copy_is_the_file_and_overwrites_nothing(tmp_path):
    place = tmp_path / "mine.yaml"
    assert invoke("cp", "lora-chat-8b", str(place)).exit_code == 0
    assert place.read_text() == file_of("lora-chat-8b").read_text()
    again = invoke("cp", "glue-sst2", str(place))
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)
    assert place.read_text() == file_of("lora-chat-8b").read_text()
    unknown = invoke("cp", "lora-chat-8")
    assert "did you mean 'lora-chat-8b'" in unknown.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_how_it_is_run_and_is_valid(name):
    text = file_of(name).read_text()
    assert f"dpft cp {name} mine.yaml" in text
    assert re.search(r"dpft (train|sweep) --config mine\.yaml", text)
    assert max(map(len, text.splitlines())) <= 100
    words = [word for word in settings_in(file_of(name)) if not word.startswith("hydra")]
    # Of a sweep the first point.
    words = [re.sub(r"=choice\((\w+).*", r"=\1", word) for word in words]
    if "_file=" in " ".join(words) or "task.source=sample" in words:  # its size is not known
        words.append("task.train_size=20000")
    # Noise is given, whose calibration takes longer than all else.
    assert check([*words, "eps=null", "privacy.noise_multiplier=1"], whole=False) == []
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
    if chosen.get("optim.microbatch_tokens") != "auto":
        data.append("optim.microbatch_tokens=512")
    beside = ["hydra/launcher=basic"] if "hydra/launcher" in chosen else []
    return [
        *("--config", str(file_of(name)), f"runs_dir={folder}", *beside, *data, *SMALL, *words),
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


# Those of several processes, and the sweep, have tests of their own.
TOGETHER = ("fsdp-8gpus", "pipeline-4gpus")
SWEPT = ("slurm-sweep",)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*TOGETHER, *SWEPT)])
def test_a_recipe_runs_at_a_small_size(name, tmp_path, quick_scores):
    own_data(tmp_path)
    tracked = ["track=csv"] if find_spec("tensorboard") is None else []
    words = small(name, tmp_path, *(tracked if name == "watched-run" else ()))
    check_record(name, run_experiment(parse(compose(expanded(words)))).record)


@pytest.mark.parametrize("name", TOGETHER)
def test_a_recipe_of_several_gpus_runs_on_two_processes(name, tmp_path):
    own_data(tmp_path)
    words = small(name, tmp_path, "ranks=2", "name=run")
    if name == "pipeline-4gpus":
        words.append("clip.count=2")
    processes = ranks(["train", *words], tmp_path, tmp_path)
    try:
        results = [process.finish() for process in processes]
    finally:
        for process in processes:
            process.__exit__()
    assert [result.returncode for result in results] == [0, 0], results
    record = read_record(tmp_path / "run")
    check_record(name, record)
    assert (record["training"]["ranks"], record["training"]["layout"]) == (
        2,
        name.partition("-")[0],
    )


def test_the_recipe_of_a_sweep_runs_here_where_another_launcher_is_typed(
    tmp_path, monkeypatch, quick_scores
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "Multirun", Here)
    words = small("slurm-sweep", tmp_path, "eps=null", "seed=0,1")
    result = invoke("sweep", *words)
    assert result.exit_code == 0, result.output
    # What is for Slurm alone is left out, and said to be.
    assert "hydra.launcher.partition=gpu" in result.output
    records = [read_record(path.parent) for path in tmp_path.glob("*/record.json")]
    assert len(records) == 2
    for record in records:
        check_record("slurm-sweep", record)


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
    ("line", "typed"),
    [
        ("name: run-eps${eps}", "name=run-eps${eps}"),
        ("name: 'eps ${eps}, seed ${seed}'", "name='eps ${eps}, seed ${seed}'"),
        ("privacy.delta: ${eps}", "privacy.delta=${eps}"),
        ("optim.betas: ['${eps}', 0.5]", "optim.betas=['${eps}',0.5]"),
        (r"name: eps\${eps}", r"name='eps\${eps}'"),
        ("name: $HOME", "name='$HOME'"),
    ],
)
def test_a_line_of_a_file_is_what_it_is_when_typed(tmp_path, line, typed):
    file = tmp_path / "run.yaml"
    file.write_text(f"eps: 0.25\n{line}\n")
    assert compose(settings_in(file)) == compose(["eps=0.25", typed])


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
