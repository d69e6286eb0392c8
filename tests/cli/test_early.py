"""Help, wrong settings and missing runs are answered before torch is imported."""

import os
import subprocess
import sys

SECONDS = 5  # of a processor; it takes one where torch alone takes longer than this


def python(code):
    """Run code in a new process, where nothing is imported yet."""
    code += "\nimport sys, time\nprint({'torch', 'transformers'} & {*sys.modules})"
    code += "\nprint(time.process_time())"
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    *said, imported, seconds = done.stdout.splitlines()
    assert imported == "set()"
    assert float(seconds) < SECONDS
    return said


def test_help_and_ls_load_no_hydra_and_a_missing_run_is_an_error_before_the_hub_is_asked():
    said = python(
        """
import sys
import dpft.config.offline
from typer.testing import CliRunner
from dpft.cli.app import app

dpft.config.offline.stay_offline_if_unreachable = lambda: print("asked")
for line in ("--help", "ls", "--version", "train -h"):
    print(CliRunner().invoke(app, line.split()).exit_code, "hydra" in sys.modules)
lines = ("score nowhere decode.beams=1", "score nowhere", "generate nowhere n=2")
for line in (*lines, "report nowhere", "validate resume=nowhere"):
    result = CliRunner().invoke(app, line.split())
    print(result.exit_code, "nowhere" in result.stderr, result.stdout)
"""
    )
    assert said == ["0 False"] * 4 + ["2 True "] * 5


def test_wrong_settings_are_an_error_before_torch_is_imported(tmp_path):
    (tmp_path / "few.jsonl").write_text('{"text": "one"}\n' * 5)
    (tmp_path / "foreign/private").mkdir(parents=True)
    said = python(
        f"""
import os
from dpft.cli.train import execute
from dpft.config.compose import compose
from dpft.config.errors import DpftError

os.environ.pop("DPFT_DATA", None)
os.environ["HF_HOME"] = os.environ["HF_HUB_CACHE"] = {str(tmp_path)!r}
own = ["task=language_modeling", "task.test_share=0.2", "runs_dir={tmp_path}"]
for words in (
    ["model=gpt2"],
    ["model=custom", "model.path=./nowhere"],
    ["task=e2e"],
    [*own, "task.train_file=nowhere.jsonl"],
    [*own, "task.train_file={tmp_path}/few.jsonl", "name=foreign"],
    [*own, "task.train_file={tmp_path}/few.jsonl", "optim.batch_size=6"],
    ["task=e2e", "task.source=sample", "runs_dir={tmp_path}", "clip=none", "audit=bound"],
    ["task=e2e", "task.source=sample", "runs_dir={tmp_path}/few.jsonl"],
):
    try:
        execute(compose(words))
    except DpftError as error:
        print(type(error).__name__, error)
"""
    )
    found = [line for line in said if line.startswith(("Model", "Data", "Config", "Run"))]
    starts = (
        "ModelError hub model openai-community/gpt2 could not be loaded",
        "ModelError model.path is './nowhere', and there is no such folder",
        "DataError the e2e files were found neither in task.data_dir",
        "DataError cannot read nowhere.jsonl",
        f"RunError {tmp_path}/foreign holds files of a run but no identity.json",
        "ConfigError optim.batch_size is 6 for",
        "ConfigError got audit.gradients=1000 audit.secrets=0 with clip=none",
        f"RunError cannot use {tmp_path}/few.jsonl",
    )
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == [*starts]
