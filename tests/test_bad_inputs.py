"""Wrong commands, files and models: one message that says what to type; nothing is started."""

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.guard import guarded
from dpft.cli.train import execute
from dpft.config.compose import compose

# What is typed, and a part of the message. Wrong values of settings: tests/config/test_schema.py.
COMMANDS = {
    "validate task=5": "Config group override must be a string",
    "train task.train_file=~/mail.csv": "type $HOME instead",
    "train --config-dir nowhere": "Additional config directory",
    "validate parallel=pipeline": "type ranks=N",
    "validate resume=nowhere": "holds no config.yaml",
    "validate --config nowhere.yaml": "cannot read nowhere.yaml",
    "account task=text2text eps=3": "Type task.train_size=N",
    "sweep": "type dpft sweep task=e2e eps=3,8",
    "sweep eps=1,2 name=x": "would share the folder",
    "score nowhere decode.beams=1": "nowhere",
    "score task=sst2 predictions=nowhere": "nowhere: No such file",
    "train audit=bonud task=e2e": "audit is 'bonud'; did you mean 'bound'?",
    "nope": "No such command",
}


def message(result):
    """Return what a command printed that was refused, in one line."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch):
    monkeypatch.setattr("dpft.config.offline.stay_offline_if_unreachable", lambda: None)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_one_message(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert COMMANDS[line] in message(CliRunner().invoke(app, line.split()))
    assert not list(tmp_path.iterdir())


CSV = "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
# Files of the user: one of each kind of mistake; the details are tested with the readers.
FILES = {
    "empty.csv": ("", "is empty; expected column names"),
    "column.csv": (CSV.replace("label", "kind"), "Type task.label_column=NAME"),
    "line.jsonl": ('{"text": "a", "label": "a"}\nnot json\n', "line 2: Expecting value"),
    "sheet.xlsx": ("PK", "has suffix '.xlsx'; expected one of"),
    "role.chat.jsonl": ('{"messages": [{"role": "bot", "content": "x"}]}\n', "bot"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_one_message(name, tmp_path):
    content, said = FILES[name]
    file = tmp_path / name
    file.write_text(content)
    own = ["chat"] if "chat" in name else ["classification", "task.classes=[a,b]"]
    typed = ["data", "check", *own, f"task.train_file={file}", "task.test_share=0.2"]
    printed = message(CliRunner().invoke(app, typed))
    assert said in printed
    assert name in printed


MODELS = {
    "model=custom model.path=nowhere": "no folder of that name here",
    "model=custom model.path=broken": "expected a model in save_pretrained form",
    "device=cuda:9": "type device=cpu",
    "optim.batch_size=500": "type optim.batch_size=8",
    "task.max_length=100000": "type task.max_length=512",
    "adapt=lora adapt.targets=[nope]": "expected names such as",
    "clip=per_device clip.count=500": "expected 1 to 22",
    "runs_dir=own.csv": "own.csv",
}


def typed_with(words, *others):
    """Return the words of a small run, but for those that ``words`` choose otherwise."""
    chosen = [word.partition("=")[0] for word in words.split()]
    usual = ("task=classification", "task.classes=[a,b]", "model=random-bert", "threads=1")
    usual += ("optim.batch_size=8", "optim.steps=1", *others)
    return [*(w for w in usual if w.partition("=")[0] not in chosen), *words.split()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(CSV)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize("words", MODELS)
def test_a_run_that_cannot_start_is_one_message(words, here, capsys):
    before = sorted(here.iterdir())
    typed = typed_with(words, "task.train_file=own.csv", "task.test_share=0.2")
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: execute(compose(typed)), "train")()
    assert ended.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert MODELS[words] in printed
    assert "Traceback" not in printed
    # Nothing was spent, so nothing is left.
    assert [path for path in here.iterdir() if path not in before] in ([], [here / "runs"])
    assert not any(path.is_file() for path in here.glob("runs/*/*"))
