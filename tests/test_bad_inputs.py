"""Three hundred wrong settings, commands, files and models: one message each, nothing is begun."""

import copy
import gzip
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.cli.guard import guarded
from dpft.cli.train import execute
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.folder import choices, settings_of
from dpft.config.schema import parse
from dpft.models.sizes import FAMILIES
from dpft.report.markdown import escape, table
from dpft.tasks import load_task

INF, NAN = float("inf"), float("nan")
TEXT, LIST, MAP = "word", [1], {"x": 1}
COUNTS = (0, -1, 1.5, TEXT, LIST, MAP, True, INF, NAN)
NUMBERS = (-1.0, TEXT, LIST, MAP, True, INF, NAN)
NAMES = ("nope", "", 5, None, LIST, True)
# Of each setting, what it must not be.
WRONG = {
    "privacy.epsilon": (0, *NUMBERS, 1e300),
    "privacy.delta": (0, 1, *NUMBERS),
    "privacy.noise_multiplier": (0, *NUMBERS, 1e300, 1e-300),
    "privacy.accountant": NAMES,
    "privacy.sampling": NAMES,
    "privacy.noise_seed": (-1, 2**63, 0.5, TEXT, LIST, True, NAN),
    "optim.name": NAMES,
    "optim.lr": (0, *NUMBERS, 1e39, None),
    "optim.epochs": (*NUMBERS, None),
    "optim.batch_size": COUNTS,
    "optim.steps": (-1, 1.5, TEXT, LIST, True, NAN),
    "optim.microbatch_tokens": (*COUNTS, None),
    "optim.weight_decay": (*NUMBERS, None),
    "optim.adam_epsilon": (0, *NUMBERS),
    "optim.momentum": (1, *NUMBERS),
    "optim.betas": ([2, 3], [0.9], TEXT, 0.9, [NAN, 0.9], ["a", "b"], None),
    "optim.schedule": NAMES,
    "optim.warmup_ratio": (2, *NUMBERS),
    "model.init": NAMES,
    "model.dropout": (1, *NUMBERS),
    "model.tied": (TEXT, 1, LIST),
    "clip.threshold": (0, *NUMBERS, 1e300),
    "decode.beams": COUNTS,
    "decode.batch_size": COUNTS,
    "decode.top_p": (0, 2, *NUMBERS),
    "decode.length_penalty": (TEXT, LIST, INF, NAN),
    "decode.split": ("train", *NAMES),
    "seed": (-1, 2**63, 1.5, TEXT, None, True),
    "threads": (*COUNTS, 10**6),
    "ranks": (*COUNTS, 10**6),
    "checkpoint_every": (*COUNTS, None),
    "record_norms": COUNTS,
    "device": ("tpu", "cuda:-1", "", 5, None, LIST),
    "precision": NAMES,
    "name": ("../x", "/x", "", "..", 5, LIST),
    "runs_dir": ("", " ", 5, None, LIST),
    "force": ("maybe", 1, None),
    "task.name": ("nope", "os:system", "os:path", "a..b:X", ":X", "x:", "dpft.tasks:TASKS", 5),
    "task.max_length": (0, -5, 1.5, TEXT, LIST, True, NAN),
    "task.limit_train": (0, -1, 1.5, TEXT, LIST, True, NAN),
    "nope": (1, None),
    "optim.nope": (1, None),
    "decode.nope": (1, None),
}


@pytest.fixture(scope="module")
def shipped():
    return compose([])


def test_there_are_two_hundred():
    assert sum(map(len, WRONG.values())) >= 200


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_refused_by_name(shipped, key):
    for value in WRONG[key]:
        raw = copy.deepcopy(shipped)
        *groups, leaf = key.split(".")
        inner = raw
        for group in groups:
            inner = inner[group]
        inner[leaf] = value
        with pytest.raises(ConfigError) as caught:
            load_task(parse(raw).task)
        said = str(caught.value)
        assert key in said or (key == "task.name" and "no task" in said), (value, said)
        assert "\n" not in said


def leaves(value, path=()):
    yield path
    for name in value if isinstance(value, dict) else ():
        yield from leaves(value[name], (*path, name))


def refusal(raw):
    """What is said of settings that make no run; None if nothing is."""
    try:
        load_task(parse(raw).task)
    except ConfigError as error:
        return str(error)
    return None


def test_what_is_left_out_has_a_default_or_is_named(shipped):
    named = set()
    for *groups, leaf in filter(None, leaves(shipped)):
        raw = copy.deepcopy(shipped)
        inner = raw
        for group in groups:
            inner = inner[group]
        del inner[leaf]
        key, said = ".".join([*groups, leaf]), refusal(raw)
        assert said is None or key in said
        if said is not None:
            named.add(key)
    groups = {"task", "model", "adapt", "clip", "privacy", "optim", "decode"}
    within = {"task.name", "model.path", "adapt.name", "clip.plan", "optim.lr"}
    assert named >= {*groups, *within, "seed", "name", "resume", "force"}


@pytest.mark.parametrize("group", ["task", "model", "clip", "decode", "audit", "sweep"])
def test_a_group_that_is_none_is_refused_by_name(shipped, group):
    for value in (TEXT, 5, LIST):
        with pytest.raises(ConfigError, match=f"^{group} is .*expected a group of settings"):
            parse({**shipped, group: value})


COMMANDS = {
    "train =3": "expected NAME=VALUE",
    "train --epsilon 3": "did you mean 'eps'",
    "train eps": "type eps=3",
    "train eps=3=4": "expected float or null",
    "train task=nope": "expected one of",
    "validate task.name=os:system": "which is no task",
    "train -m task=e2e eps=3,8 --cfg job": "got --multirun and --cfg; expected one",
    "train name=private": "expected another name",
    "train task.train_file=~/mail.csv": "type $HOME instead",
    "account task=text2text task.train_size=abc": "expected a whole number above 0",
    "validate task=text2text task.train_size=0": "expected a whole number above 0",
    "account task=e2e task.source=sample": "of the published data, not these",
    "plan optim.batch_size=50000": "expected at most 42061: type optim.batch_size=8192",
    "plan --ranks 2 --rank 2": "expected 0 to 1",
    "validate privacy.noise_multiplier=1e300 eps=null": "<= 1e+30",
    "validate =3": "expected NAME=VALUE",
    "validate +eps=3": "without +",
    "validate ~model": "model is not set",
    "validate ~optim.lr": "optim.lr is not set",
    "account eps=null privacy.noise_multiplier=1e300": "<= 1e+30",
    "sweep": "type dpft sweep task=e2e eps=3,8",
    "sweep =3,4": "expected",
    "sweep --watch nowhere": "there is no sweep",
    "sweep --list nowhere": "cannot read the list",
    "sweep --list .": "cannot read the list",
    "select eps=1 --metric x --trials nan": "expected",
    "report nowhere": "there is no folder",
    "report .": "holds no runs",
    "decode nowhere": "does not exist",
    "generate nowhere n=2": "expected",
    "score nowhere": "does not exist",
    "score task=sst2 predictions=nowhere": "cannot read",
    "score task=sst2 predictions=.": "cannot read",
    "table nope/1": "expected",
    "table li2022/2 --runs nowhere": "is no folder",
    "table li2022/2 --scale tall": "expected",
    "figure nope/1": "there is no figure",
    "claims nope": "expected",
    "ls nope": "expected one of",
    "data nope": "expected",
    "data where nope": "expected one of",
    "data sample e2e": "no folder given",
    "data sample nope --to x": "expected one of",
    "data check e2e task.data_dir=nowhere": "no trainset.csv found",
    "data check classification": "was given no data",
    "validate --config nowhere.yaml": "cannot read nowhere.yaml",
    "validate --config": "expected one, as in --config run.yaml",
    "validate --config a --config b": "got --config twice",
    "validate --config-dir nowhere": "expected a folder with files",
    "validate model=custom": "type model.path=VALUE",
    "validate adapt.rank=4": "belongs to adapt=lora",
    "validate adapt=lora adapt.rank=0": "expected a number > 0",
    "validate adapt=prefix adapt.rank=4": "belongs to adapt=lora",
    "validate privacy.noise_multiplier=1 eps=3": "leave eps out",
    "train clip=none eps=3": "leave eps out",
    "validate clip=none privacy.epsilon=3": "leave privacy.epsilon out",
    "validate eps=3 privacy.epsilon=5": "got eps=3 and privacy.epsilon=5",
    "train ++eps=3 ++privacy.epsilon=5": "got eps=3 and privacy.epsilon=5",
    "account sampling=poisson privacy.sampling=shuffle": "leave sampling or privacy.sampling out",
    "sweep eps=3,8 privacy.epsilon=8": "point 1 of 2 (eps=3 privacy.epsilon=8): got eps=3 and",
    "train name=${nope}": "name: Interpolation key 'nope' not found; expected a setting",
    "validate optim.lr=${nope}": "optim.lr: Interpolation key 'nope' not found",
    "validate clip=uniform clip.count=0": "clip.count is 0; expected a number > 0",
    "account optim.batch_size=16 privacy.delta=0.1": "privacy.delta is 0.1, and a step draws",
    "validate optim.batch_size=16 privacy.delta=0.1": "expected a smaller delta",
    "train ranks=4096": "cores; expected at most 4 ranks for each",
    "validate audit=canary audit.repetitions=1000000": "audit.secrets=10 audit.repetitions=4206",
    "validate audit.gradients=1000000000": "expected a number >= 0 and <= 1e+06",
    "plan clip=none eps=3": "leave eps out",
    "sweep clip=none eps=1,3": "leave eps out",
    "validate eps=": "expected float or null",
    "validate eps=three": "expected float or null",
    "validate eps=1,3": "for a run of each type dpft train -m",
    "validate task=": "expected one of",
    "validate model=./mine": "type model=custom",
    "validate experiment=demo": "type +experiment=NAME",
    "validate optim.batch_size=5000000": "type optim.batch_size=8192",
    "validate optim.step=5": "did you mean 'optim.steps'",
    "validate optim.learning_rate=1": "did you mean 'optim.lr'",
    "validate +optim.learning_rate=1": "did you mean 'lr'",
    "validate max_grad_norm=1": "did you mean 'clip.threshold'",
    "validate decode.batch=1": "did you mean 'decode.batch_size'",
    "validate parallel=pipeline model.checkpointing=true": "expected false",
    "validate parallel=pipeline": "type ranks=N",
    "validate ranks=2 audit=canary": "audit with 2 processes",
    "validate task=chat model=bert-base": "is no causal language model",
    "validate parallel.shards=2": "belongs to parallel=fsdp",
    "validate compile=true clip=ghost": "type clip=bk",
    "validate decode=greedy decode.top_p=0.9": "type decode.sample=true decode.beams=1",
    "validate decode=greedy decode.length_penalty=2": "no effect on decode.beams=1",
    "validate decode.sample=true": "expected one beam: type decode.beams=1",
    "validate decode.beam=0": "did you mean 'decode.beams'",
    "validate task.max_length=1 task=sst2": "task.max_length is 1",
    "validate evaluate.every=1 evaluate.file=gone.csv": "gone.csv does not exist; expected records",
    "validate hydra.nope=1": "unknown setting hydra.nope",
    "validate resume=nowhere": "holds no config.yaml",
    "account clip=none": "there is nothing to account for",
    "account task=text2text eps=3": "Type task.train_size=N",
    "account eps=0": "expected a number > 0",
    "train --nope": "there is no flag --nope",
    "train --config nowhere.yaml eps=3": "cannot read nowhere.yaml",
    "train --config-dir nowhere": "expected a folder with files",
    "sweep eps=1,2 name=x": "would share the folder",
    "audit nope": "expected one of bound, canary",
    "audit bound audit=none": "leave one of them out",
    "generate nowhere": "no n given",
    "table li2022/99": "there is no table",
    "figure li2022/99": "there is no figure",
    "claims li2022/c99": "there is no claim",
    "cp nope": "there is no recipe",
    "report": "Missing argument",
    "nope": "No such command",
    "--nope": "No such option",
}


def told(result):
    """What a command said that was refused, in one message."""
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
    assert COMMANDS[line] in told(CliRunner().invoke(app, line.split()))
    assert not list(tmp_path.iterdir())


ROWS = "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
CSV = f"text,label\n{ROWS}"
CHAT = '{{"messages": {}}}\n'
# Files of one's own: what is wrong with them, and what is said of it.
FILES = {
    "empty.csv": ("", "is empty; expected column names"),
    "header.csv": ("text,label\n", "has no rows"),
    "semicolons.csv": (CSV.replace(",", ";"), "separated by ';'; expected commas"),
    "latin.csv": (CSV.replace("3", "\xe9").encode("latin-1"), "line 5 is not UTF-8 text"),
    "windows.csv": (CSV.replace("3", "\u20ac").encode("cp1252"), "iconv -f cp1252 -t utf-8"),
    "gzip.csv": (gzip.compress(CSV.encode()), "is a gzip file; expected UTF-8 text: type gzip -dc"),
    "utf16.csv": (CSV.encode("utf-16"), "type iconv -f utf-16 -t utf-8"),
    "utf16.jsonl": (CSV.encode("utf-16"), "type iconv -f utf-16 -t utf-8"),
    "big-endian.csv": (b"\xfe\xff" + CSV.encode("utf-16-be"), "type iconv -f utf-16 -t utf-8"),
    "workbook.csv": (b"PK\x03\x04\x14\0[Content_Types].xml", "is a zip file; expected UTF-8 text"),
    "parquet.jsonl": (b"PAR1\x15\x04", "is a parquet file; expected UTF-8 text: type mv"),
    "column.csv": (CSV.replace("label", "kind"), "Type task.label_column=NAME"),
    "class.csv": (f"{CSV}text,c\n", "line 42: label 'c' is no class"),
    "hole.csv": (f"{CSV},a\n", "line 42: column 'text' is empty"),
    "wide.csv": (f"{CSV}x,a,b\n", "got 3 cells for 2 columns"),
    "narrow.csv": (f"{CSV}x\n", "got 1 cells for 2 columns"),
    "twice.csv": (CSV.replace("label", "text"), "column 'text' is there twice"),
    "quote.csv": (f'{CSV}"open,a\n', "after line 41: unexpected end of data"),
    "bytes.csv": (bytes(range(256)) * 20, "line 2"),
    "line.jsonl": ('{"text": "a", "label": "a"}\nnot json\n', "line 2: Expecting value"),
    "arrays.jsonl": ("[1]\n", "expected a JSON object"),
    "null.jsonl": ('{"text": null, "label": "a"}\n', "column 'text' is None"),
    "number.jsonl": ('{"text": 5, "label": "a"}\n', "column 'text' is 5 (int)"),
    "sheet.xlsx": ("PK", "has suffix '.xlsx'; expected one of"),
    "cut.parquet": ("PAR1abc", "is not a parquet file that can be read"),
    "none.chat.jsonl": (CHAT.format("[]"), "column 'messages' is []"),
    "text.chat.jsonl": (CHAT.format('"hello"'), "column 'messages' is 'hello'"),
    "role.chat.jsonl": (CHAT.format('[{"role": "bot", "content": "x"}]'), "its role is 'bot'"),
    "asked.chat.jsonl": (CHAT.format('[{"role": "user", "content": "x"}]'), "has no answer"),
    "number.chat.jsonl": (CHAT.format('[{"role": "user", "content": 5}]'), "its text is 5"),
    "bare.chat.jsonl": (CHAT.format('[{"content": "x"}]'), "message 1 is {'content': 'x'}"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_file_is_one_message(name, tmp_path):
    content, said = FILES[name]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    own = ["chat"] if "chat" in name else ["classification", "task.classes=[a,b]"]
    typed = ["data", "check", *own, f"task.train_file={file}", "task.test_share=0.2"]
    message = told(CliRunner().invoke(app, typed))
    assert said in message
    assert name in message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "task.classes is not set"),
        ("task.classes=[a]", "expected two names at least"),
        ("task.classes=[a,a]", "expected two names at least"),
        ("task.classes=[a,b] task.test_share=1", "expected 0 or more, below 1"),
        ("task.classes=[a,b] task.data_dir=x", "expected one place for all data"),
        ("task.classes=[a,b] task.dev_file=x.csv", "cannot read x.csv"),
        ("task.classes=[a,b] task.test_file=empty.csv", "empty.csv has no rows"),
        ("task.classes=[a,b] task.unit=user", "Type task.user_column=NAME"),
        ("task.classes=[a,b] task.unit=user task.user_column=who", "no column 'who'"),
    ],
)
def test_settings_that_do_not_fit_a_file_are_one_message(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(CSV)
    (tmp_path / "empty.csv").write_text("text,label\n")
    typed = ["data", "check", "classification", "task.train_file=own.csv", *words.split()]
    assert said in told(CliRunner().invoke(app, typed))


def test_labels_that_are_all_alike_are_refused_in_training_and_told_of_others(tmp_path):
    alike, own = tmp_path / "alike.csv", tmp_path / "own.csv"
    alike.write_text(CSV.replace(",b", ",a"))
    own.write_text(CSV)
    typed = ["data", "check", "classification", "task.classes=[a,b]"]
    said = told(CliRunner().invoke(app, [*typed, f"task.train_file={alike}"]))
    assert "every label of the training data is a" in said
    others = [f"task.train_file={own}", f"task.test_file={alike}"]
    result = CliRunner().invoke(app, [*typed, *others])
    assert result.exit_code == 0
    assert "every label is a: the commonest class scores 1 here" in result.output


MODELS = {
    "model=custom model.path=nowhere": "no folder of that name here",
    "model=custom model.path=./nowhere": "there is no such folder",
    "model=custom model.path=broken": "expected a model in save_pretrained form",
    "model=custom model.path=strange": "expected a model in save_pretrained form",
    "model=custom model.path=bundled:nope": "expected bundled:tiny",
    "model=custom model.path=package:nope": "expected one of package:",
    "model=custom model.path=random:nope": "expected one of random:",
    "model=gpt3-175b": "has sizes and no weights; expected",
    "model=random-gpt2": "is no text encoder",
    "model=random-vit": "is no text encoder",
    "model.tied=false": "type model.tied=null",
    "device=cuda:9": "type device=cpu",
    "optim.batch_size=500": "type optim.batch_size=8",
    "task.max_length=100000": "type task.max_length=512",
    "adapt=lora adapt.targets=[nope]": "expected names such as",
    "adapt=lora adapt.rank=100000": "type adapt.rank=16",
    "adapt=prefix": "type adapt=lora",
    "clip=per_device clip.count=500": "expected 1 to 22",
    "parallel=fsdp": "type ranks=N",
    "runs_dir=own.csv": "own.csv",
}


@pytest.mark.parametrize("words", MODELS)
def test_a_run_that_cannot_be_begun_is_one_message(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text(CSV)
    for name, held in (("broken", "{"), ("strange", '{"model_type": "nope"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(held)
    before = sorted(tmp_path.iterdir())
    typed = [
        *("task=classification", "task.train_file=own.csv", "task.test_share=0.2", "threads=1"),
        *("task.classes=[a,b]", "model=random-bert", "optim.batch_size=8", "optim.steps=1"),
    ]
    chosen = [word.partition("=")[0] for word in words.split()]
    typed = [word for word in typed if word.partition("=")[0] not in chosen]
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: execute(compose([*typed, *words.split()])), hub=False, resumes=True)()
    assert ended.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert MODELS[words] in message
    assert "Traceback" not in message
    # Nothing was spent, so nothing is left.
    assert [path for path in tmp_path.iterdir() if path not in before] in ([], [tmp_path / "runs"])
    assert not any(path.is_file() for path in tmp_path.glob("runs/*/*"))


# Of these, what depends on the hub, this machine or the disk is found when the run begins.
ONLY_BEGUN = ("model=custom model.path=nowhere", "device=cuda:9", "runs_dir=own.csv")


def test_validate_refuses_these_without_data_and_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, held in (("broken", "{"), ("strange", '{"model_type": "nope"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(held)
    typed = [
        *("task=classification", "task.train_file=gone.csv", "task.train_size=32", "clip=bk"),
        *("task.classes=[a,b]", "model=random-bert", "optim.batch_size=8", "optim.steps=1"),
        *("eps=null", "privacy.noise_multiplier=1"),
    ]
    for words in set(MODELS).difference(ONLY_BEGUN):
        chosen = [word.partition("=")[0] for word in words.split()]
        others = [word for word in typed if word.partition("=")[0] not in chosen]
        said = told(CliRunner().invoke(app, ["validate", *others, *words.split()]))
        assert MODELS[words] in said


def test_the_kind_of_each_shipped_model_of_the_hub_is_known():
    paths = {name: settings_of("model", name)["path"] for name in choices("model")}
    hub = {path for path in paths.values() if ":" not in path and path != "???"}
    assert hub == set(FAMILIES)


def test_there_are_a_hundred_of_these_too():
    assert len(COMMANDS) + len(FILES) + len(MODELS) >= 100


PAGE = Path(__file__).parents[1] / "docs/reference/refusals.md"


def tables():
    """The tables of the page, in Markdown."""
    said = "part of the message"
    yield table(["typed after `dpft`", said], [(f"`{t}`", escape(m)) for t, m in COMMANDS.items()])
    rows = [(name, *_last_line(content), escape(m)) for name, (content, m) in FILES.items()]
    yield table(["file", "its last line", said], rows)
    yield table(["typed", said], [(f"`{t}`", escape(m)) for t, m in MODELS.items()])


def _last_line(content):
    lines = content.splitlines() if isinstance(content, str) else ()
    return (f"`{lines[-1]}`" if lines else "",)


def test_the_page_of_refusals_has_all_of_these():
    """To write it anew: python -m tests.test_bad_inputs."""
    assert written(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")


def written(text):
    """The page with its tables as they should be, each in the place of one."""
    made = tables()
    return re.sub(r"(?:^\|.*\n)+", lambda _: f"{next(made)}\n", text, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
