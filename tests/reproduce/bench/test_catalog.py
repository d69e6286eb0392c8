"""What may be typed, and what it means."""

import pytest

from dpft.config.errors import ConfigError

from .fakes import settings


def test_peers_are_compared_on_an_untied_model():
    made = settings(styles="bk", peers="opacus")
    assert made.variants == ("none", "bk", "opacus")
    assert made.untied
    assert not settings(model="vit-small", peers="opacus").untied


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({"model": "gtp2"}, "--model"),
        ({"styles": "bk:3"}, "--styles"),
        ({"styles": "uniform:0"}, "--styles"),
        ({"peers": "opacuss"}, "--peers"),
        ({"batch": 0}, "--batch"),
        ({"dtype": "float16"}, "--dtype"),
        ({"model": "vit-small", "length": 10}, "--length"),
        ({"model": "tiny", "length": 257}, "--length"),
        ({"model": "roberta-base", "untied": True}, "--untied"),
    ],
)
def test_impossible_settings_are_named(typed, named):
    with pytest.raises(ConfigError, match=named):
        settings(**typed)
