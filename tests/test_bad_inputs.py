"""Two hundred wrong settings and commands: one sentence that names them, and nothing is begun."""

import copy

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
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
    "out_of_memory": NAMES,
    "replay": NAMES,
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
    "train eps=3=4": "cannot read",
    "train task=nope": "expected one of",
    "validate task.name=os:system": "which is no task",
    "validate privacy.noise_multiplier=1e300 eps=null": "<= 1e+30",
    "validate =3": "expected NAME=VALUE",
    "validate +eps=3": "without +",
    "validate ~model": "model is not set",
    "validate ~optim.lr": "optim.lr is not set",
    "account eps=null privacy.noise_multiplier=1e300": "<= 1e+30",
    "sweep =3,4": "expected",
    "sweep --watch nowhere": "there is no sweep",
    "sweep --list nowhere": "cannot read the list",
    "sweep --list .": "cannot read the list",
    "select eps=1 --metric x --trials nan": "expected",
    "compare nowhere": "does not exist",
    "compare nowhere/record.json": "does not exist",
    "compare .": "does not exist",
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
    "study read nowhere --key nowhere": "cannot read",
    "ls nope": "expected one of",
    "data nope": "expected",
    "data where nope": "expected one of",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_one_message(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpft.config.offline.stay_offline_if_unreachable", lambda: None)
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert COMMANDS[line] in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
