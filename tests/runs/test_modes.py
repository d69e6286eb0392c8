"""What is private is its owner's alone, whatever the umask and whatever a copy has lost."""

import os
import stat

import pytest

from dpft.runs import Ledger, MetricsLog, RunDirectory, RunError, save_private_state
from dpft.tasks.objectives.base import Prediction
from dpft.training.predictions import write_predictions
from tests.runs.conftest import CONFIG


def _open_to_others(folder):
    return [
        f"{path.relative_to(folder)} {path.stat().st_mode & 0o777:o}"
        for path in (folder, *folder.rglob("*"))
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def _used(path):
    with RunDirectory.open(path, CONFIG, "") as run:
        run.noise_key()
        with MetricsLog(run.metrics) as log:
            log.append({"step": 0, "loss": 1.0})
        save_private_state(run, "audit", 1, {})
        Ledger(run.ledger, {"key": "k"}).close()
        write_predictions(run.generations("test"), [Prediction("s", "p", ("r",))])
        return run.path


def test_nobody_else_reads_what_is_private(tmp_path):
    for mask in (0o000, 0o022, 0o077):
        before = os.umask(mask)
        run = _used(tmp_path / oct(mask))
        os.umask(before)
        assert not _open_to_others(run / "private")
        assert not _open_to_others(run / "ledger.jsonl")
        assert not _open_to_others(run / "generations/test.jsonl")


def test_a_folder_that_was_opened_up_is_closed_again(tmp_path):
    run = _used(tmp_path / "run")
    for path in (run / "private", *(run / "private").rglob("*")):
        path.chmod(0o777)
    _used(run)
    # What is written once and tells nothing stays as it was, in a folder that is closed.
    assert _open_to_others(run / "private") == ["README.md 777"]


def test_no_lock_and_no_log_is_written_through_a_link(tmp_path):
    """As `test_log` shows of logs."""
    run, mine = _used(tmp_path / "run"), tmp_path / "mine"
    mine.write_text("of mine")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(mine)
    with pytest.raises(RunError, match="cannot use"):
        RunDirectory.open(run, CONFIG, "")
    assert mine.read_text() == "of mine"
