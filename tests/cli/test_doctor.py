"""`dpft doctor` shows what is there and what is missing, and fails for nothing."""

from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.tasks.metrics.java import JavaError


def test_it_shows_versions_devices_java_hub_and_data(monkeypatch):
    def no_java():
        raise JavaError("no Java")

    monkeypatch.setattr("dpft.tasks.metrics.java.java_version", no_java)
    monkeypatch.delenv("DPFT_DATA", raising=False)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    for word in ("Python 3.", "torch 2.", "GPU", "METEOR", "no Java", "hub", "DPFT_DATA"):
        assert word in result.stdout
