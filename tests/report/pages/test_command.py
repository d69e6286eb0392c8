"""``dpft report`` as people type it."""

import stat
import subprocess
import sys

from typer.testing import CliRunner

from dpft.cli.app import app
from tests.report.pages.example import Page, a_run, config, record


def invoke(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_page_lies_in_the_run_and_the_private_one_in_its_private_folder(tmp_path):
    run = a_run(tmp_path / "run")
    result = invoke(run)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{run}/report.html\n"
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert "Mean loss" not in page.text
    result = invoke(run, "--private")
    private = run / "private/report.html"
    assert result.stdout == f"{private}\n"
    assert "do not publish" in result.stderr
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert "Mean loss" in Page(private.read_text(encoding="utf-8")).text
    assert Page((run / "report.html").read_text(encoding="utf-8")).text == page.text


def test_a_page_of_several_lies_where_they_are(tmp_path):
    a_run(tmp_path / "a")
    a_run(tmp_path / "b", record(0.7, settings=config(seed=1)))
    assert invoke(tmp_path / "a", tmp_path / "b").stdout == f"{tmp_path.resolve()}/report.html\n"
    assert invoke(tmp_path, "--out", tmp_path / "new" / "x.html").exit_code == 0
    assert "say 0" in (tmp_path / "new/x.html").read_text()
    assert invoke(tmp_path, "--private").exit_code == 0
    folder = tmp_path / "private"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "report.html").exists()


def test_what_cannot_be_is_one_message(tmp_path):
    result = invoke(tmp_path / "none")
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr
    run = a_run(tmp_path / "run")
    assert "--samples is -1" in invoke(run, "--samples", "-1").stderr
    assert "is a folder" in invoke(run, "--out", tmp_path).stderr
    (tmp_path / "file").write_text("")
    assert "could not write" in invoke(run, "--out", tmp_path / "file" / "x.html").stderr


def test_a_page_of_one_run_needs_neither_torch_nor_hydra(tmp_path):
    a_run(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from dpft.cli.report import main; "
        f"main([Path({str(tmp_path / 'run')!r})]); "
        "print(sorted({'torch', 'hydra', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
