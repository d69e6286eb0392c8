"""What `dpft doctor` finds, and that nothing which is absent makes it fail."""

import importlib
import json

from typer.testing import CliRunner

from dpft.cli.app import app


def findings(*options):
    result = CliRunner().invoke(app, ["doctor", "--json", *options])
    assert result.exit_code == 0, result.output
    return {finding["name"]: finding for finding in json.loads(result.stdout)}


def test_it_tells_of_everything_and_of_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr("dpft.tasks.metrics.java.java_version", lambda: "17")
    monkeypatch.setattr("dpft.tasks.metrics.java.find_java", lambda: "java")
    monkeypatch.setenv("DPFT_DATA", str(tmp_path))
    (tmp_path / "e2e").mkdir()
    found = findings("--runs", str(tmp_path / "not/yet"))
    names = {"dpft", "versions", "processor", "memory", "Java", "hub", "data", "disk", "extra dev"}
    assert names <= found.keys()
    assert any(name.startswith("GPU") for name in found)
    assert found["data"]["found"].endswith("of tasks: e2e")
    assert str(tmp_path) in found["disk"]["found"]
    for name, finding in found.items():
        if name.startswith("extra ") and not finding["fine"]:
            assert finding["advice"] == f"pip install 'dpft[{name.removeprefix('extra ')}]'"
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert max(map(len, shown.splitlines())) <= 80


def test_what_is_absent_is_told(monkeypatch):
    from dpft.tasks.metrics.java import JavaError

    def none():
        raise JavaError("no Java")

    monkeypatch.setattr("dpft.tasks.metrics.java.java_version", none)
    monkeypatch.delenv("DPFT_DATA", raising=False)
    # The package gives the module's name to a function of it.
    module = importlib.import_module("dpft.runs.environment")
    monkeypatch.setattr(module, "version_of", lambda name: None if name == "wandb" else "0")
    found = findings()
    assert not found["Java"]["fine"]
    assert "export DPFT_DATA" in found["data"]["advice"]
    assert found["extra wandb"]["found"] == "lacks wandb"
    assert not found["versions"]["fine"]
