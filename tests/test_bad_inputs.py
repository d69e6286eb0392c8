"""Wrong commands, files and models: one message that says what to type; nothing is started."""

from contextlib import suppress

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.guard import guarded
from dpft.cli.train import execute
from dpft.config.compose import compose
from dpft.config.errors import ModelError
from dpft.config.folder import choices, settings_of
from dpft.config.schema import Model, build
from dpft.models.architecture import KINDS, kind_of
from dpft.models.load import find
from dpft.models.needs import Needs, check_choice

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
    "account eps=1e3,1e5": "dpft sweep eps=1e3,1e5, for a list 'eps=[1e3,1e5]'",
    "account eps = 3": "expected NAME=VALUE without blanks",
    "validate model=GPT2": "did you mean 'gpt2'?",
    "validate task.sorce=sample": "did you mean 'task.source'?",
    "validate eps=3 privacy.epsilon=5": "two values of one setting",
    "validate eps=nan": "privacy.epsilon is nan; expected a finite number",
    "sweep eps=range(1,2000)": "got 1,999 points; expected at most 1,000",
    "table li2022/7 --seeds -1": "expected numbers with commas",
    "validate audit=canary audit.repetitions=2000000": "less than or equal to 1000000",
    "validate clip=flat_adaptive clip.quantile_budget=0.999999": "less than or equal to 0.9",
    "validate decode.beams=5000": "less than or equal to 1000",
    "validate task=classification task.classes=[true,false]": "true and false in quotes",
    "score run predictions=rows.jsonl": "as in dpft score task=e2e predictions=FILE",
    "export rum": "did you mean 'run'?",
    "validate resume=rum": "did you mean 'run'?",
    "predict rows.csv run": "'rows.csv' is a file",
    "data check language_modeling task.train_file=rows.csv": "rows.csv is empty; expected column",
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
    (tmp_path / "run").mkdir()
    (tmp_path / "rows.csv").touch()
    assert COMMANDS[line] in message(CliRunner().invoke(app, line.split()))
    assert len(list(tmp_path.iterdir())) == 2


CSV = "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
MODELS = {
    "model=custom model.path=nowhere": "no folder of that name here",
    "model=custom model.path=broken": "expected a model in save_pretrained form",
    "model=custom model.path=adapter": "it is an adapter: merge it with its base model first",
    "model=gpt2": "Expected one of model=bert-base, bert-large, minilm, roberta",
    "model=t5-small": "does not do what this task needs: 60.5 million parameters, writes text",
    "ranks=1000": "ranks is 1000; expected",
    "threads=4000": "threads is 4000; expected",
    "adapt=lora adapt.rank=1000": "expected at most 64, the size of a layer",
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
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").touch()
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


@pytest.mark.parametrize("name", [n for n in choices("model") if n.startswith("random-")])
def test_what_a_model_is_said_to_do_is_what_it_can_do(name):
    model = build(Model, settings_of("model", name), "model")
    config = find(model).config()
    for kind, source in [*((kind, False) for kind in KINDS), ("causal", True)]:
        needs, fitting = Needs(kind, source=source), []
        for check, given in ((check_choice, (model, needs)), (kind_of, (model, needs, config))):
            with suppress(ModelError):
                check(*given)
                fitting.append(check)
        assert fitting in ([], [check_choice, kind_of]), needs


def test_classes_may_be_typed_as_numbers(here):
    typed = ["classification", "task.train_file=own.csv", "task.test_share=0.2"]
    (here / "own.csv").write_text(CSV.replace(",a\n", ",0\n").replace(",b\n", ",1\n"))
    result = CliRunner().invoke(app, ["data", "check", *typed, "task.classes=[0,1]"])
    assert "labels: 0 " in result.output, result.output


def test_classes_that_no_score_can_be_trusted_of_are_named(here):
    """Before the budget is spent; how many records each class has in training stays private."""
    (here / "own.csv").write_text(CSV.replace("text 3,b", "text 3,c"))
    own = ["classification", "task.train_file=own.csv", "task.test_file=few.csv"]
    (here / "few.csv").write_text("text,label\n" + "x,a\n" * 3 + "y,b\n" * 2)
    result = CliRunner().invoke(app, ["data", "check", *own, "task.classes=[a,b,c,d]"])
    said = " ".join(result.output.split())
    assert "classes without a training record: d" in said
    assert "classes of which at most 2 records are scored: b (2), c (0), d (0)" in said
