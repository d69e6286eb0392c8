"""What may be typed, what it means, and the verb end to end on the bundled model."""

import json

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.errors import ConfigError
from tests.reproduce.bench.fakes import settings

ARGUMENTS = "--batch 2 --length 6 --steps 1 --rounds 1 --styles bk --device cpu"


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.slow
def test_measured_and_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = bench(*ARGUMENTS.split(), "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "seconds" in result.output
    file = tmp_path / "tiny-b2-t6-cpu.json"
    assert {path.name for path in tmp_path.iterdir()} == {file.name, "tiny-b2-t6-cpu.png"}
    document = json.loads(file.read_text())
    assert [row["variant"] for row in document["measurements"]] == ["bk", "none"]
    assert document["environment"]["threads"] == 1
    assert document["settings"]["device"] == "cpu"
    assert str(tmp_path) not in file.read_text()
    assert document["command"] == (
        "OMP_NUM_THREADS=1 dpft bench --model tiny --batch 2 --length 6 --styles none,bk "
        "--rounds 1 --steps 1 --device cpu --dtype float32"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--styles gost", "did you mean 'ghost'?"),
        ("task=e2e", "expected it next to --run"),
        ("--run", "got --out next to --run"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, tmp_path):
    result = bench(*arguments.split(), "--out", str(tmp_path))
    assert result.exit_code == 2
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


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
