"""One search finds the runs of all verbs, and no secret trial."""

from pathlib import Path

import pytest

from dpft.runs.run_index import is_run, runs_below


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


def test_runs_at_any_depth_without_trials_and_what_was_set_aside(folder: Path) -> None:
    names = [path.relative_to(folder).as_posix() for path in runs_below(folder)]
    assert names == ["a", "b", "deep/er", "privately", "select/chosen"]


def test_what_the_folder_itself_is_called_does_not_matter(folder: Path) -> None:
    for name in ("c.old-1", "select/private/trials/t"):
        assert runs_below(folder / name) == [folder / name]
        assert is_run(folder / name)
    assert not is_run(folder / "notes")


def test_a_link_to_a_folder_is_not_followed(folder: Path) -> None:
    before = runs_below(folder)
    (folder / "again").symlink_to(folder)
    assert runs_below(folder) == before
