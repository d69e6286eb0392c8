"""Where runs are stored: names of folders, searches, secret trials, and files that records name."""

import shutil
from pathlib import Path

import pytest

from dpft.config.errors import ConfigError, RecordError
from dpft.runs.folders import check_no_trial, generations_files, is_run, runs_below
from tests.processes import invoke
from tests.report.pages.example import a_run, a_selection, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        *("b/record.json", "a/identity.json", "a/checkpoints/step-1/manifest.json"),
        *("deep/er/ledger.jsonl", "c.old-1/record.json", "privately/record.json"),
        *("select/private/trials/t/record.json", "select/chosen/record.json", "notes/README.md"),
    ):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).write_text("")
    return tmp_path / "runs"


def test_the_search_finds_runs_at_any_depth_but_no_trials_and_nothing_set_aside(folder):
    (folder / "again").symlink_to(folder)
    names = [path.relative_to(folder).as_posix() for path in runs_below(folder)]
    assert names == ["a", "b", "deep/er", "privately", "select/chosen"]
    for name in ("c.old-1", "select/private/trials/t"):  # the name of the folder itself is ignored
        assert runs_below(folder / name) == [folder / name]
        assert is_run(folder / name)
    assert not is_run(folder / "notes")


def test_a_trial_is_recognised_by_the_files_around_it(tmp_path, monkeypatch):
    selection = a_selection(tmp_path / "one")
    check_no_trial(selection)
    check_no_trial(selection / "chosen")
    check_no_trial(selection / "chosen/private/metrics.jsonl")  # a run's own folder
    (tmp_path / "link").symlink_to(selection / "private/trials/a")
    monkeypatch.chdir(selection / "private/trials/a")
    inside = ("private", "private/trials/a", "private/trials/none", "private/trials/a/model")
    for path in (*(selection / name for name in inside), Path("model/.."), tmp_path / "link"):
        with pytest.raises(ConfigError, match="secret trials"):
            check_no_trial(path)


@pytest.mark.parametrize(
    "typed",
    ["report RUN", "table li2022/7 --runs RUN", "score RUN", "generate RUN n=1 sources=dev"],
)
def test_every_verb_that_reads_runs_refuses_a_trial(tmp_path, typed):
    trial = a_selection(tmp_path / "one") / "private/trials/a"
    before = sorted(tmp_path.rglob("*"))
    result = invoke(*typed.replace("RUN", str(trial)).split())
    assert result.exit_code == 2, result.output
    assert "secret trials of a selection" in result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("file", ["generations/../../secret/test.jsonl", "generations/test.jsonl"])
def test_a_file_elsewhere_is_not_read(tmp_path, file):
    """By a name that leads up, and by a folder that is a link."""
    secret = tmp_path / "secret" / "test.jsonl"
    secret.parent.mkdir()
    secret.write_text('{"source": "s", "prediction": "secret", "references": ["secret"]}\n')
    of_run = record(generations={"test": file})
    astray = a_run(tmp_path / "run", of_run)
    if ".." not in file:
        shutil.rmtree(astray / "generations")
        (astray / "generations").symlink_to(secret.parent)
    with pytest.raises(RecordError, match="generations"):
        generations_files(astray, of_run)
    result = invoke("score", astray)
    assert result.exit_code == 2
    assert "generations" in result.stderr
