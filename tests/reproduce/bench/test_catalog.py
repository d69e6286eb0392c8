"""What may be typed, and what it means."""

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.catalog import STYLES, Variant

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
