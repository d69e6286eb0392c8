import os
import shutil
from pathlib import Path

import pytest

from dpft.runs import (
    Ledger,
    RunDirectory,
    RunError,
    RunLockedError,
    RunMismatchError,
    config_hash,
    key_fingerprint,
)
from tests.runs.conftest import CONFIG


def spend(run: RunDirectory, steps: int) -> None:
    header = {"key_fingerprint": key_fingerprint(run.noise_key())}
    with Ledger(run.ledger, header) as ledger:
        for step in range(steps):
            ledger.spend(step)


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
    message = str(caught.value)
    assert "privacy.epsilon: 3 -> 8" in message
    assert "seed: (absent) -> null" in message
    assert "delta" not in message
    assert "force=true" in message


def test_force_moves_the_old_run_aside_with_its_ledger(run: RunDirectory) -> None:
    spend(run, 2)
    (run.path / "train.log").write_text("x")
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
