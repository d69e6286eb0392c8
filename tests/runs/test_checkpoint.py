import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

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

STATE: dict[str, Any] = {"lr": 0.1 + 0.2, "one": 1.0, "name": "adam", "none": None, "list": [True]}


def save(run: RunDirectory, step: int) -> Path:
    weights = {"w": torch.arange(6.0).reshape(2, 3) + step, "b": torch.full((2,), float(step))}
    checkpoint.save(run, step, weights, STATE)
    return run.checkpoints / f"step-{step:08d}"


def load(run: RunDirectory) -> checkpoint.Checkpoint:
    latest = checkpoint.load(run)
    assert latest is not None
    return latest


def tensors(latest: checkpoint.Checkpoint) -> dict[str, torch.Tensor]:
    found = {name: torch.empty_like(t, device="cpu") for name, t in latest.written.items()}
    latest.fill(found)
    return found


def names(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_what_is_saved_is_loaded(run: RunDirectory) -> None:
    save(run, 4)
    latest = load(run)
    assert latest.step == 4
    assert torch.equal(tensors(latest)["w"], torch.arange(6.0).reshape(2, 3) + 4)
    assert latest.state == STATE
    assert isinstance(latest.state["one"], float)


@pytest.mark.parametrize("file", ["part-00000.safetensors", "manifest.json"])
def test_a_damaged_one_is_refused_and_the_one_before_is_there(run: RunDirectory, file: str) -> None:
    """Damage of other kinds is that of `tests/test_damaged_files.py`."""
    save(run, 2)
    for damage in (flip, Path.unlink):
        path = save(run, 4)
        damage(path / file)
        said = f"{path} is damaged .*{file}.*or remove {path} and"
        with pytest.raises(CheckpointError, match=said):
            load(run)
        shutil.rmtree(path)
    assert load(run).step == 2


def test_one_of_a_step_replaces_the_one_in_place(run: RunDirectory) -> None:
    save(run, 2)
    checkpoint.save(run, 2, {"w": torch.zeros(1)}, {})
    assert load(run).state == {}
    assert names(run) == ["step-00000002"]


def test_a_full_disk_leaves_the_earlier_ones_and_says_what_to_do(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *_: Any) -> None:
        (folder / "manifest.json").write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(run, 2)
    monkeypatch.setattr(checkpoint, "_write_manifest", full)
    said = "checkpoint step-00000004.*No space left.*step-00000002 is the last good one"
    with pytest.raises(CheckpointError, match=said):
        save(run, 4)
    assert names(run) == ["step-00000002"]
    monkeypatch.undo()
    save(run, 4)
    assert load(run).step == 4


PRIVATE: dict[str, Any] = {"gradients": {"scores": [0.1, -2.5e-17, float("inf")]}}


def save_both(run: RunDirectory, step: int) -> Path:
    file = save_private_state(run, "audit", step, {"step was": step})
    checkpoint.save(run, step, {"w": torch.ones(2)}, {})
    return file


def test_private_state_comes_back_to_the_last_digit(run: RunDirectory) -> None:
    file = save_private_state(run, "audit", 4, PRIVATE)
    assert load_private_state(run, "audit", 4) == PRIVATE
    assert file == run.private / "audit" / "step-00000004.json"
    assert "`audit/`" in (run.private / "README.md").read_text()


def test_every_checkpoint_in_place_has_its_private_file_and_few_others_stay(
    run: RunDirectory,
) -> None:
    for step in (2, 4, 6, 8):
        save_both(run, step)
        kept = {path.stem for path in (run.private / "audit").iterdir()}
        assert {path.name for path in run.checkpoints.iterdir()} <= kept
        assert len(kept) <= 3
    # Steps were replayed from an earlier checkpoint: the file of a kill before its checkpoint goes.
    save_private_state(run, "audit", 10, PRIVATE)
    save_both(run, 8)
    assert not (run.private / "audit/step-00000010.json").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing"),
        ('{"step": 4, "st', "cannot be read"),
        (json.dumps(sealed({"step": 6, "state": {}})), "it is of step 6"),
        (json.dumps(sealed({"step": 4, "state": {"a": 1}})).replace("1", "7"), "checksum"),
    ],
)
def test_a_checkpoint_is_of_no_use_without_its_private_file(
    run: RunDirectory, content: str | None, said: str
) -> None:
    file = save_both(run, 4)
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=said):
        load_private_state(run, "audit", 4)
