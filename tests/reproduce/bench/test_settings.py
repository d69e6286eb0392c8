"""What may be typed, and what it means."""

from pathlib import Path

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench import MODELS, STYLES, BenchSettings, Variant

from .fakes import settings


def test_defaults_are_the_models():
    for name, info in MODELS.items():
        made = settings(model=name)
        assert (made.batch, made.length, made.steps) == (info.batch, info.length, info.steps)


@pytest.mark.parametrize(
    ("typed", "styles"),
    [
        ("bk, ghost", ("none", "bk", "ghost")),
        ("bk,none,bk", ("none", "bk")),
        ("uniform:6,two_group:3,uniform", ("none", "uniform:6", "two_group:3", "uniform")),
        ("all", STYLES),
    ],
)
def test_none_is_always_measured_first(typed, styles):
    assert settings(styles=typed).styles == styles


def test_peers_run_untied_beside_a_baseline_of_their_own():
    made = settings(styles="bk", peers="opacus")
    labels = [variant.label for variant in made.variants]
    assert labels == ["none", "bk", "none (untied)", "opacus (untied)"]
    bk, peer = made.variants[1], made.variants[3]
    assert made.baseline(bk).label == "none"
    assert made.baseline(peer) == made.variants[2] == Variant("none", untied=True, marked=True)
    assert peer.untied


@pytest.mark.parametrize("typed", [{"untied": True}, {"model": "vit-small"}])
def test_where_all_are_tied_alike_they_share_one_baseline(typed):
    made = settings(styles="bk", peers="opacus", **typed)
    assert [variant.label for variant in made.variants] == ["none", "bk", "opacus"]
    assert {made.baseline(variant) for variant in made.variants} == {made.variants[0]}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"model": "gtp2"}, ["--model", "'gtp2'", "did you mean 'gpt2'?", "vit-small"]),
        ({"styles": "bk,gost"}, ["--styles", "'gost'", "did you mean 'ghost'?"]),
        ({"styles": "bk:3"}, ["'bk:3'", "uniform:6"]),
        ({"styles": "uniform:0"}, ["'uniform:0'", "at least 1"]),
        ({"peers": "opacuss"}, ["--peers", "did you mean 'opacus'?"]),
        ({"batch": 0}, ["--batch is 0", "at least 1"]),
        ({"rounds": -1}, ["--rounds is -1"]),
        ({"threads": 0}, ["--threads is 0"]),
        ({"memory": 0.0}, ["--memory is 0", "more than 0"]),
        ({"memory": float("nan")}, ["--memory is nan"]),
        ({"dtype": "float16"}, ["--dtype", "bfloat16"]),
        ({"device": "gpu"}, ["--device", "cuda"]),
        ({"model": "vit-small", "length": 10}, ["reads images", "leave it out"]),
        ({"model": "tiny", "length": 257}, ["--length is 257", "2 to 256"]),
        ({"model": "roberta-base", "untied": True}, ["--untied", "leave it out"]),
    ],
)
def test_impossible_settings_say_what_to_type(typed, words):
    with pytest.raises(ConfigError) as error:
        settings(**typed)
    for word in words:
        assert word in str(error.value)


def test_file_names_tell_shapes_apart():
    shapes = ({"batch": 3}, {"length": 3}, {"untied": True}, {"model": "vit-small"}, {})
    others = ({"dtype": "bfloat16"}, {"device": "cuda"}, {"name": "mine"}, {"memory": 24.0})
    assert len({settings(**typed).stem for typed in (*shapes, *others)}) == 9
    assert settings(model="gpt2", untied=True).stem == "gpt2-b4-t100-untied-cpu"
    assert settings(name="mine").stem == "mine"


def test_the_command_measures_the_same_again(tmp_path):
    typed = {"model": "gpt2", "batch": 1, "length": 512, "styles": "bk", "peers": "opacus"}
    made = settings(**typed, rounds=7, out=Path("x"))
    program, verb, *words = made.command.split()
    assert (program, verb) == ("dpft", "bench")
    again = {
        name.removeprefix("--"): int(value) if value.isdecimal() else value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }
    assert BenchSettings.make(**again | {"out": Path(again["out"])}) == made
    assert settings(untied=True).command.endswith("--untied")
    assert settings(time_only=True).command.endswith("--time-only")
    assert settings(memory=24.0).command.endswith("--memory 24")
    assert str(tmp_path) not in settings(out=tmp_path).command  # no folder of this machine
