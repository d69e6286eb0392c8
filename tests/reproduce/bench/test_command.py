"""The verb, end to end on the bundled model."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from dpft.cli import bench as verb
from dpft.cli.app import app
from dpft.reproduce.bench import worker

ARGUMENTS = "--batch 2 --length 6 --steps 1 --rounds 1 --threads 1 --styles bk --device cpu"


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.slow
def test_measured_written_and_continued(tmp_path):
    command = [*ARGUMENTS.split(), "--out", str(tmp_path), "--name", "mine"]
    result = bench(*command)
    assert result.exit_code == 0, result.output
    assert "seconds" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        f"mine.{suffix}" for suffix in ("json", "jsonl", "md", "png", "svg")
    }
    document = json.loads((tmp_path / "mine.json").read_text())
    assert [row["variant"] for row in document["measurements"]] == ["bk", "none"]
    assert document["environment"]["threads"] == 1
    assert document["settings"]["device"] == "cpu"
    assert str(tmp_path) not in (tmp_path / "mine.json").read_text()
    assert document["command"] in (tmp_path / "mine.md").read_text()
    lines = (tmp_path / "mine.jsonl").read_text()
    assert bench(*command).exit_code == 0
    assert (tmp_path / "mine.jsonl").read_text() == lines


def test_explain_prints_forms_and_measures_nothing(tmp_path, monkeypatch):
    kinds, threads = [], torch.get_num_threads()

    def run(job):  # here: what it takes to run a job in a process is tested above
        kinds.append(job["kind"])
        return worker.main(job)

    monkeypatch.setattr(verb, "run_job", run)
    result = bench(*ARGUMENTS.split(), "--out", str(tmp_path), "--explain")
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert kinds == ["environment", "explain"]
    assert "h.0-1.attn.c_attn" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--styles gost", "did you mean 'ghost'?"),
        ("--model gpt3", "expected one of"),
        ("--device cpu --largest-batch", "needs a CUDA device"),
        ("--memory 24", "type --largest-batch too"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, tmp_path):
    result = bench(*arguments.split(), "--out", str(tmp_path))
    assert result.exit_code == 2
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


def test_help_loads_no_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from dpft.cli.app import app; "
        "CliRunner().invoke(app, ['bench', '--help']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
