"""Each setting has a type, a range and one effect; a wrong one is refused by its name."""

import copy
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Gt, Lt

from dpft.config.compose import compose
from dpft.config.errors import Missing, SettingError
from dpft.config.folder import choices
from dpft.config.schema import GROUPS, SHORTHANDS, Effect, Run, build, effects_of, names_with, parse
from dpft.privacy import spec
from dpft.reproduce.tables.record_index import match_key
from dpft.runs.identity import config_hash

INF, NAN = float("inf"), float("nan")
TEXT, LIST, MAP = "word", [1], {"x": 1}
COUNTS = (0, -1, 1.5, TEXT, LIST, MAP, True, INF, NAN)
NUMBERS = (-1.0, TEXT, LIST, MAP, True, INF, NAN)
NAMES = ("nope", "", 5, None, LIST, True)
# For each setting, values that it must not have.
WRONG = {
    "privacy.epsilon": (0, *NUMBERS, 1e300),
    "privacy.noise_multiplier": (0, *NUMBERS, 1e300, 1e-300),
    "privacy.noise_seed": (-1, 2**63, 0.5, TEXT, LIST, True, NAN),
    "optim.lr": (0, *NUMBERS, 1e39, None),
    "optim.batch_size": COUNTS,
    "optim.steps": (-1, 1.5, TEXT, LIST, True, NAN),
    "optim.microbatch_tokens": (*COUNTS, None),
    "optim.betas": ([2, 3], [0.9], TEXT, 0.9, [NAN, 0.9], ["a", "b"], None),
    "model.tied": (TEXT, 1, LIST),
    "clip.threshold": (0, *NUMBERS, 1e-13, 1e13),
    "clip.plan": NAMES,
    "clip.groups": NAMES,
    "decode.top_p": (0, 2, *NUMBERS),
    "evaluate.every": (*COUNTS,),
    "audit.gradients": (-1, 10**9, TEXT),
    "seed": (-1, 2**63, 1.5, TEXT, None, True),
    "threads": (*COUNTS, 10**6),
    "device": ("tpu", "cuda:-1", "", 5, None, LIST),
    "name": ("../x", "/x", "", "..", "private/x", 5, LIST),
    "force": ("maybe", 1, None),
    **dict.fromkeys(("model", "clip", "decode", "audit", "sweep"), (TEXT, 5, LIST)),
}
# Two settings that exclude each other: what is typed, and the setting that is refused.
PAIRS = {
    "clip=ghost clip.groups=per_layer": "clip.plan",
    "clip=bk clip.plan=fused": "clip.plan",
    "clip=per_layer clip.plan=none": "clip.plan",
    "clip=bk +clip.quantile=0.5": "clip.quantile",
    "clip=none +clip.threshold=1": "clip.threshold",
    "clip=bk +clip.allocation=weighted": "clip.allocation",
    "clip=bk clip.threshold=null": "clip.threshold",
    "clip=bk clip.threshold=null +clip.thresholds=[1]": "clip.thresholds",
    "clip=per_layer clip.thresholds=[1,2]": "clip.threshold",
    "clip=per_layer clip.threshold=null clip.thresholds=[1,-2]": "clip.thresholds",
    "clip=uniform clip.count=null": "clip.groups",
    "clip=custom clip.patterns=[[1]]": "clip.groups",
    "clip=per_layer_adaptive clip.quantile=null": "clip.quantile",
    "clip=per_layer_adaptive clip.quantile_noise=9": "clip.quantile_budget",
    "clip=per_layer_adaptive clip.quantile_budget=null": "clip.quantile_budget",
    "clip=flat_adaptive +clip.rescale=1": "clip.rescale",
    "eps=null": "privacy.epsilon",
    "privacy.max_batch=9": "privacy.max_batch",
    "optim.sampling_rate=0.1 optim.batch_size=9": "optim.sampling_rate",
    "optim.batch_size=null": "optim.batch_size",
    "optim.batch_size=null optim.sampling_rate=0.1 optim.rate_like=sst2": "optim.rate_like",
    "optim.warmup_steps=3 optim.warmup_ratio=0.1": "optim.warmup_steps",
    "optim.momentum=0.5": "optim.momentum",
    "decode.top_p=0.9": "decode.top_p",
    "decode.sample=true": "decode.beams",
    "evaluate.split=test": "evaluate.split",
    "parallel.name=fsdp parallel=data +parallel.microbatches=2": "parallel.microbatches",
    "adapt.name=top2": "adapt.blocks",
    "+adapt.rank=4": "adapt.rank",
    "adapt=scratch model.init=pretrained": "model.init",
    "adapt=prefix model.checkpointing=true": "model.checkpointing",
    "parallel=pipeline model.checkpointing=true": "model.checkpointing",
    "model=minilm task=sst2 adapt=top2 model.pooling=mean": "model.pooling",
    "parallel=fsdp evaluate.every=1": "evaluate.every",
    "parallel=fsdp compile=true": "compile",
    "~model": "model",
    "~optim.lr": "optim.lr",
    "model=custom": "model.path",
    "+optim.nope=1": "optim.nope",
    "+nope=1": "nope",
}


@pytest.fixture(scope="module")
def shipped():
    return compose([])


def changed(config, key, value):
    inner = config = copy.deepcopy(config)
    *groups, leaf = key.split(".")
    for group in groups:
        inner = inner[group]
    inner[leaf] = value
    return config


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_refused_by_name(shipped, key):
    for value in WRONG[key]:
        with pytest.raises(SettingError) as caught:
            parse(changed(shipped, key, value))
        assert (caught.value.key, "\n" in str(caught.value)) == (key, False), value


@pytest.mark.parametrize("typed", PAIRS)
def test_settings_that_exclude_each_other_are_refused_by_name(typed):
    with pytest.raises(SettingError) as caught:
        parse(compose(typed.split()))
    assert caught.value.key == PAIRS[typed]


@dataclass(frozen=True)
class Kinds:
    """A plain dataclass, as tasks are."""

    count: int = 1
    share: Annotated[float, Gt(0), Lt(1)] | None = None
    numbers: tuple[Annotated[float, Ge(0)], ...] = ()
    text: str | None = None
    choice: Literal["one", "two"] | None = None


def test_values_are_of_the_type_of_their_field():
    found = build(Kinds, {"share": None, "numbers": [1, 2.5], "choice": "two"}, "x")
    assert found == Kinds(numbers=(1, 2.5), choice="two")
    assert type(found.numbers[0]) is float


@pytest.mark.parametrize(
    ("name", "value", "expected", "advice"),
    [
        ("count", "3", "a valid integer", ""),
        ("count", 3.0, "a valid integer", ""),
        ("share", 1, "a number less than 1", ""),
        ("numbers", [1, -1], "a number greater than or equal to 0", ""),
        ("text", 3, "a valid string", "as text, type \"x.text='3'\""),
        ("choice", "tow", "'one' or 'two'", ""),
        ("cuont", Missing.UNKNOWN, "", "known: x.count"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(name, value, expected, advice):
    with pytest.raises(SettingError) as caught:
        build(Kinds, {name: 1 if value is Missing.UNKNOWN else value}, "x")
    error = caught.value
    assert (error.key, error.got, error.expected) == (f"x.{name}", value, expected)
    assert error.advice.startswith(advice)


EFFECTS = {
    Effect.PLACE: {"name", "runs_dir", "sweep", "origin", "raw"},
    Effect.EXECUTION: {
        *("resume", "force", "device", "threads", "ranks", "checkpoint_every", "compile"),
        *("checkpoint_minutes", "verbosity", "record_norms", "parallel", "track", "evaluate"),
        "decode.precision",
    },
    Effect.REPETITION: {
        *("seed", "model.path", "model.revision", "model.checkpointing", "optim.microbatch_tokens"),
        *("privacy.noise_seed", "decode.split", "decode.batch_size", "clip.plan"),
    },
}


def test_every_setting_has_one_effect():
    found = dict(effects_of(Run))
    for group, cls in GROUPS.items():
        assert set(effects_of(cls)) == {f.name for f in fields(cls)}
        found |= {f"{group}.{name}": effect for name, effect in effects_of(cls).items()}
    for effect, names in EFFECTS.items():
        assert {name for name, other in found.items() if other is effect} == names
    for cls in (Run, *GROUPS.values()):  # a second one would be ignored
        for hint in cls.__annotations__.values():
            assert str(hint).count("Effect.") <= 1


def test_the_hash_is_of_what_is_not_a_default(shipped):
    run = parse(shipped)
    digest = config_hash(run.identity())
    none = {"name": "x", "runs_dir": "elsewhere", "device": "cpu", "threads": 3, "force": True}
    none |= {"track": {"name": "csv"}, "precision": "float32", "evaluate": {"every": 3}}
    none |= {"audit": {"candidates": 500}, "model.dropout": None, "eps": 8}
    for key, value in none.items():
        assert config_hash(parse(changed(shipped, key, value)).identity()) == digest, key
    some = {"seed": 4, "privacy.epsilon": 4, "precision": "bfloat16", "audit": {"secrets": 1}}
    some |= {"clip.plan": "ghost", "optim.microbatch_tokens": 1024, "task.max_length": 99}
    for key, value in some.items():
        config = changed(shipped, key, value)
        assert config_hash(parse(config).identity()) != digest, key
        same = key.partition(".")[0] in names_with(Run, Effect.REPETITION)
        same = same or key in EFFECTS[Effect.REPETITION]
        assert (match_key(config) == match_key(shipped)) is same, key
    assert not {*SHORTHANDS, *run.identity()} - {*GROUPS, *SHORTHANDS, "task", "seed"}


def test_a_shipped_choice_is_what_its_name_says():
    for name in choices("clip"):
        run = parse(compose([f"clip={name}"]))
        assert run.clip.style == spec.style_in(run.raw["clip"]) == name
        assert (run.clip.plan, run.clip.groups, run.clip.adaptive) == spec.STYLES[name]


@pytest.mark.parametrize(
    ("typed", "style"),
    [
        ("clip=per_layer clip.plan=bk", "per_layer"),
        ("clip=bk clip.plan=ghost", "ghost"),
        ('clip=per_device clip.count=null clip.patterns=[["*"]]', "per_device"),
        ("clip=per_layer_adaptive clip.groups=block_wise", "block_wise_adaptive"),
    ],
)
def test_a_style_follows_from_its_parts(typed, style):
    assert parse(compose(typed.split())).clip.style == style
