import os
import shutil
import stat
from pathlib import Path

import pytest

from dpft.runs import (
    NORMS,
    Ledger,
    MetricsLog,
    RunDirectory,
    RunError,
    RunLockedError,
    RunMismatchError,
    config_hash,
    save_private_state,
)
from dpft.tasks.objectives.objective import Prediction
from dpft.training.predictions import write_predictions
from tests.runs.conftest import CONFIG


def test_equal_settings_have_equal_hashes() -> None:
    left = {"eps": 3, "lr": 1e-3, "sizes": (1, 2), "out": Path("a")}
    right = {"out": "a", "sizes": [1, 2.0], "lr": 0.001, "eps": 3.0}
    assert config_hash(left) == config_hash(right)
    others = (4, "3", None, True, float("inf"))
    assert len({config_hash({"eps": eps}) for eps in (3, *others)}) == 6


def test_other_settings_are_refused_and_named(run: RunDirectory) -> None:
    run.close()
    other = {"task": "e2e", "privacy": {"epsilon": 8, "delta": 1e-5}, "seed": None}
    with pytest.raises(RunMismatchError) as caught:
        RunDirectory.open(run.path, other, "")
    for said in ("privacy.epsilon: 3 -> 8", "seed: (absent) -> null", "force=true"):
        assert said in str(caught.value)
    assert "delta" not in str(caught.value)


def test_force_moves_the_old_run_aside_with_its_ledger(run: RunDirectory) -> None:
    with Ledger(run.ledger, {}) as spent:
        spent.spend(0)
    ledger = run.ledger.read_bytes()
    run.close()
    with RunDirectory.open(run.path, {"other": 1}, "", force=True) as new:
        assert new.moved == run.path.with_name("run.old-1")
        assert (new.moved / "ledger.jsonl").read_bytes() == ledger
        assert not new.ledger.exists()
        assert new.clear() == run.path.with_name("run.old-2")
        assert run.path.with_name("run.old-1").is_dir()
        with pytest.raises(RunLockedError):
            RunDirectory.open(run.path, {"other": 1}, "")


def test_two_processes_cannot_hold_one_run(run: RunDirectory) -> None:
    with pytest.raises(RunLockedError, match=rf"process {os.getpid()} on .*to be its only"):
        RunDirectory.open(run.path, CONFIG, "")
    run.close()
    RunDirectory.open(run.path, CONFIG, "").close()


def test_a_damaged_identity_is_named(run: RunDirectory) -> None:
    run.close()
    whole = run.identity.read_text()
    for text in ("[]", whole.replace("e2e", "e2f"), whole.replace(run.config_hash, "0" * 12)):
        run.identity.write_text(text)
        with pytest.raises(RunError, match="is damaged"):
            RunDirectory.open(run.path, CONFIG, "")


def test_nobody_begins_in_a_folder_that_is_being_taken_away(tmp_path, monkeypatch):
    """Else what is taken away could be the key of whoever began there."""
    gone = shutil.rmtree

    def at_the_same_time(folder, **options):
        with pytest.raises(RunLockedError):
            RunDirectory.open(tmp_path / "run", CONFIG, "task: e2e\n")
        gone(folder, **options)

    with RunDirectory.open(tmp_path / "run", CONFIG, "task: e2e\n") as run:
        monkeypatch.setattr("dpft.runs.directory.shutil.rmtree", at_the_same_time)
        run.discard_unused()
    assert not (tmp_path / "run").exists()


# --- who may read it ---


def open_to_others(folder: Path) -> list[str]:
    return [
        f"{path.relative_to(folder)} {path.stat().st_mode & 0o777:o}"
        for path in (folder, *folder.rglob("*"))
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def used(path: Path) -> Path:
    with RunDirectory.open(path, CONFIG, "") as run:
        run.noise_key()
        with MetricsLog(run.metrics) as log:
            log.append({"step": 0, "loss": 1.0})
        MetricsLog(run.private / NORMS).close()
        save_private_state(run, "audit", 1, {})
        Ledger(run.ledger, {"key": "k"}).close()
        write_predictions(run.generations("test"), [Prediction("s", "p", ("r",))])
        return run.path


def test_nobody_else_reads_what_is_private(tmp_path: Path) -> None:
    """Whatever the umask."""
    for mask in (0o000, 0o022, 0o077):
        before = os.umask(mask)
        run = used(tmp_path / oct(mask))
        os.umask(before)
        for private in ("private", "ledger.jsonl", "generations/test.jsonl"):
            assert not open_to_others(run / private)


def test_a_folder_that_was_opened_up_is_closed_again(tmp_path: Path) -> None:
    run = used(tmp_path / "run")
    for path in (run / "private", *(run / "private").rglob("*")):
        path.chmod(0o777)
    used(run)
    # What is written once and tells nothing stays as it was, in a folder that is closed.
    assert open_to_others(run / "private") == ["README.md 777"]


def test_no_lock_is_written_through_a_link(run: RunDirectory, tmp_path: Path) -> None:
    run.close()
    mine = tmp_path / "mine"
    mine.write_text("of mine")
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(mine)
    with pytest.raises(RunError, match="cannot use"):
        RunDirectory.open(run.path, CONFIG, "")
    assert mine.read_text() == "of mine"
