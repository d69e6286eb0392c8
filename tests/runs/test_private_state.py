"""State that no checkpoint may hold: beside the checkpoints, under ``private/``."""

import json
import stat
from pathlib import Path

import pytest
import torch

from dpft.runs import (
    CheckpointError,
    RunDirectory,
    checkpoint,
    load_private_state,
    save_private_state,
)
from dpft.runs.identity import sealed

STATE = {"gradients": {"scores": [0.1, -2.5e-17, float("inf")]}}


def save_both(run: RunDirectory, step: int) -> Path:
    file = save_private_state(run, "audit", step, {"step was": step})
    checkpoint.save(run, step, {"w": torch.ones(2)}, {})
    return file


def test_what_is_saved_is_loaded_to_the_last_digit(run: RunDirectory) -> None:
    save_private_state(run, "audit", 4, STATE)
    assert load_private_state(run, "audit", 4) == STATE


def test_another_digit_is_no_other_score(run: RunDirectory) -> None:
    """What an audit proves follows from these scores."""
    file = save_private_state(run, "audit", 4, STATE)
    text = file.read_text()
    file.write_text(text.replace("0.1", "0.7"))
    with pytest.raises(CheckpointError, match="does not match its own checksum"):
        load_private_state(run, "audit", 4)


def test_it_lies_under_private_for_its_owner_alone(run: RunDirectory) -> None:
    file = save_private_state(run, "audit", 4, STATE)
    assert file == run.private / "audit" / "step-00000004.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "`audit/`" in (run.private / "README.md").read_text()


def test_every_checkpoint_in_place_has_its_file_and_few_others_stay(run: RunDirectory) -> None:
    for step in (2, 4, 6, 8):
        save_both(run, step)
        kept = {path.stem for path in (run.private / "audit").iterdir()}
        assert {path.name for path in run.checkpoints.iterdir()} <= kept
        assert len(kept) <= 3
    # Steps were replayed from an earlier checkpoint: the file of a kill before its checkpoint goes.
    save_private_state(run, "audit", 10, STATE)
    save_both(run, 8)
    assert not (run.private / "audit/step-00000010.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing"),
        ('{"step": 4, "st', "cannot be read"),
        (json.dumps(sealed({"step": 6, "state": {}})), "it is of step 6"),
        ('{"step": 4}', "cannot be read"),
        ("[]", "cannot be read"),
    ],
)
def test_without_its_file_a_checkpoint_is_of_no_use(
    run: RunDirectory, content: str | None, said: str
) -> None:
    file = save_both(run, 4)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        load_private_state(run, "audit", 4)
    assert str(file) in str(caught.value)
    assert "force=true" in str(caught.value)


def test_a_disk_that_refuses_is_told(run: RunDirectory) -> None:
    (run.private / "audit").write_text("a file where the folder would be")
    with pytest.raises(CheckpointError, match="could not write"):
        save_private_state(run, "audit", 2, STATE)
