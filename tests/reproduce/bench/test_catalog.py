"""What may be typed, and what it means."""

from pathlib import Path

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import STYLES, BenchSettings, Variant

from .fakes import settings


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
    ("typed", "named"),
    [
        ({"model": "gtp2"}, "--model"),
        ({"styles": "bk:3"}, "--styles"),
        ({"styles": "uniform:0"}, "--styles"),
        ({"peers": "opacuss"}, "--peers"),
        ({"batch": 0}, "--batch"),
        ({"memory": -1.0}, "--memory"),
        ({"dtype": "float16"}, "--dtype"),
        ({"model": "vit-small", "length": 10}, "--length"),
        ({"model": "tiny", "length": 257}, "--length"),
        ({"model": "roberta-base", "untied": True}, "--untied"),
    ],
)
def test_impossible_settings_are_named(typed, named):
    with pytest.raises(ConfigError, match=named):
        settings(**typed)


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
