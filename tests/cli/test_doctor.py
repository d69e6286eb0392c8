"""What `dpft doctor` finds, and that nothing which is absent makes it fail."""

from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.tasks.metrics.java import JavaError


def shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    return " ".join(result.stdout.split())


def test_it_shows_versions_devices_java_hub_and_data(tmp_path, monkeypatch):
    monkeypatch.setattr("dpft.tasks.metrics.java.java_version", lambda: "17")
    monkeypatch.setattr("dpft.tasks.metrics.java.find_java", lambda: "/bin/java")
    monkeypatch.setenv("DPFT_DATA", "mine")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine/e2e").mkdir(parents=True)
    found = shown(monkeypatch)
    for words in ("Python 3.", "torch 2.", "processor", "GPU", "17 in /bin/java", "hub offline"):
        assert words in found
    assert "DPFT_DATA is mine, with e2e" in found


def test_what_is_absent_is_reported(monkeypatch):
    def none():
        raise JavaError("no Java")

    monkeypatch.setattr("dpft.tasks.metrics.java.java_version", none)
    monkeypatch.delenv("DPFT_DATA", raising=False)
    found = shown(monkeypatch)
    assert "METEOR of E2E and DART needs it. no Java" in found
    assert "export DPFT_DATA=FOLDER" in found
