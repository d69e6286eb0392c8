"""Wrong commands, files and models: one message that says what to type; nothing is begun."""

import gzip

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.guard import guarded
from dpft.cli.train import execute
from dpft.config.compose import compose
from dpft.config.folder import choices, settings_of
from dpft.models.families import FAMILIES

# What is typed, and a part of the message. Wrong values of settings: tests/config/test_schema.py.
COMMANDS = {
    "train =3": "expected NAME=VALUE",
    "train eps=3=4": "expected a number > 0",
    "train -m task=e2e eps=3,8 --cfg job": "got --multirun and --cfg; expected one",
    "train task.train_file=~/mail.csv": "type $HOME instead",
    "train clip=none eps=3": "leave eps out",
    "train ++eps=3 ++privacy.epsilon=5": "got eps=3 and privacy.epsilon=5",
    "train ranks=4096": "cores; expected at most 4 ranks for each",
    "train --config-dir nowhere": "expected a folder with files",
    "validate task.name=os:system": "which is no task",
    "validate optim.batch_size=16 privacy.delta=0.1": "expected a smaller delta",
    "validate audit=canary audit.repetitions=1000000": "audit.secrets=10 audit.repetitions=4206",
    "validate model=custom": "type model.path=VALUE",
    "validate optim.batch_size=5000000": "type optim.batch_size=8192",
    "validate max_grad_norm=1": "did you mean 'clip.threshold'",
    "validate decode.batch=1": "did you mean 'decode.batch_size'",
    "validate parallel=pipeline": "type ranks=N",
    "validate ranks=2 audit=canary": "audit with 2 processes",
    "validate task=chat model=bert-base": "is no causal language model",
    "validate evaluate.every=1 evaluate.file=gone.csv": "gone.csv does not exist; expected records",
    "validate resume=nowhere": "holds no config.yaml",
    "validate --config nowhere.yaml": "cannot read nowhere.yaml",
    "validate --config a --config b": "got --config twice",
    "account clip=none": "there is nothing to account for",
    "account task=text2text eps=3": "Type task.train_size=N",
    "account task=e2e task.source=sample": "of the published data, not these",
    "plan optim.batch_size=50000": "expected at most 42061: type optim.batch_size=8192",
    "plan --ranks 2 --rank 2": "expected 0 to 1",
    "sweep": "type dpft sweep task=e2e eps=3,8",
    "sweep clip=none eps=1,3": "leave eps out",
    "sweep eps=3,8 privacy.epsilon=8": "point 1 of 2 (eps=3 privacy.epsilon=8): got eps=3 and",
    "sweep eps=1,2 name=x": "would share the folder",
    "sweep --list nowhere": "cannot read the list",
    "select eps=1 --metric x --trials nan": "expected",
    "compare nowhere": "does not exist",
    "report .": "holds no runs",
    "decode nowhere": "does not exist",
    "generate nowhere": "no n given",
    "score task=sst2 predictions=nowhere": "cannot read",
    "table li2022/2 --runs nowhere": "is no folder",
    "ls nope": "expected one of",
    "data sample e2e": "no folder given",
    "data check e2e task.data_dir=nowhere": "no trainset.csv found",
    "audit bound audit=none": "leave one of them out",
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
    "semicolons.csv": (CSV.replace(",", ";"), "separated by ';'; expected commas"),
    "windows.csv": (CSV.replace("3", "\u20ac").encode("cp1252"), "iconv -f cp1252 -t utf-8"),
    "gzip.csv": (gzip.compress(CSV.encode()), "is a gzip file; expected UTF-8 text: type gzip -dc"),
    "column.csv": (CSV.replace("label", "kind"), "Type task.label_column=NAME"),
    "class.csv": (f"{CSV}text,c\n", "line 42: label 'c' is no class"),
    "line.jsonl": ('{"text": "a", "label": "a"}\nnot json\n', "line 2: Expecting value"),
    "sheet.xlsx": ("PK", "has suffix '.xlsx'; expected one of"),
    "cut.parquet": ("PAR1abc", "is not a parquet file that can be read"),
    "role.chat.jsonl": ('{"messages": [{"role": "bot", "content": "x"}]}\n', "its role is 'bot'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_one_message(name, tmp_path):
    content, said = FILES[name]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    own = ["chat"] if "chat" in name else ["classification", "task.classes=[a,b]"]
    typed = ["data", "check", *own, f"task.train_file={file}", "task.test_share=0.2"]
    printed = message(CliRunner().invoke(app, typed))
    assert said in printed
    assert name in printed


MODELS = {
    "model=custom model.path=nowhere": "no folder of that name here",
    "model=custom model.path=broken": "expected a model in save_pretrained form",
    "model=custom model.path=random:nope": "expected one of random:",
    "model=gpt3-175b": "has sizes and no weights; expected",
    "model=random-gpt2": "is no text encoder",
    "device=cuda:9": "type device=cpu",
    "optim.batch_size=500": "type optim.batch_size=8",
    "task.max_length=100000": "type task.max_length=512",
    "adapt=lora adapt.targets=[nope]": "expected names such as",
    "adapt=lora adapt.rank=100000": "type adapt.rank=16",
    "adapt=prefix": "type adapt=lora",
    "clip=per_device clip.count=500": "expected 1 to 22",
    "runs_dir=own.csv": "own.csv",
}
# What depends on the hub, this machine or the disk is found when the run begins.
ONLY_BEGUN = ("model=custom model.path=nowhere", "device=cuda:9", "runs_dir=own.csv")


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
def test_a_run_that_cannot_be_begun_is_one_message(words, here, capsys):
    before = sorted(here.iterdir())
    typed = typed_with(words, "task.train_file=own.csv", "task.test_share=0.2")
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: execute(compose(typed)), hub=False, resumes=True)()
    assert ended.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert MODELS[words] in printed
    assert "Traceback" not in printed
    # Nothing was spent, so nothing is left.
    assert [path for path in here.iterdir() if path not in before] in ([], [here / "runs"])
    assert not any(path.is_file() for path in here.glob("runs/*/*"))


def test_validate_refuses_these_without_data_and_weights(here):
    given = ("task.train_file=gone.csv", "task.train_size=32", "clip=bk", "eps=null")
    for words in set(MODELS).difference(ONLY_BEGUN):
        typed = typed_with(words, *given, "privacy.noise_multiplier=1")
        assert MODELS[words] in message(CliRunner().invoke(app, ["validate", *typed]))


def test_the_kind_of_each_shipped_model_of_the_hub_is_known():
    paths = {name: settings_of("model", name)["path"] for name in choices("model")}
    hub = {path for path in paths.values() if ":" not in path and path != "???"}
    assert hub == set(FAMILIES)
