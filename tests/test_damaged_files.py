"""Damaged files: a message that names the file, and nothing is read that was not written."""

import json
import shutil

import pytest
import torch

from dpft.config.errors import DpftError
from dpft.runs import CheckpointError, Ledger, RunDirectory, checkpoint, read_ledger, read_record
from dpft.runs.folders import stored_config
from dpft.runs.log import NORMS, MetricsLog, norms_of, read_norms
from dpft.sweep.points import read_list
from dpft.sweep.sweep_folder import SweepFolder
from dpft.tasks import load_task
from tests.report.pages.example import record

CONFIG = {"task": "e2e"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One good file of each kind."""
    base = tmp_path_factory.mktemp("whole") / "run"
    with RunDirectory.open(base, CONFIG, "task: e2e\n") as run:
        run.noise_key()
        with Ledger(run.ledger, {"mechanism": {"steps": 4}}) as ledger:
            for step in range(3):
                ledger.spend(step, epsilon_rdp=step + 0.5)
        checkpoint.save(run, 2, {"w": torch.arange(6.0)}, {"lr": 0.5})
        with MetricsLog(run.private / NORMS) as norms:
            norms.append(norms_of(0, ["all"], [torch.ones(3, 1)]))
        run.mark_done()
    (base / "record.json").write_text(json.dumps(record()))
    rows = [{"source": "one", "target": "eins"}] * 3
    (base / "data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (base / "list.txt").write_text("seed=1\nseed=2\n")
    sweep = {"words": [], "config_dir": None, "lines": [], "points": []}
    (base / "sweep.json").write_text(json.dumps(sweep))
    return base


def opened(base):
    RunDirectory.open(base, CONFIG, "task: e2e\n").close()


def key_of(base):
    with RunDirectory.open(base, CONFIG, "task: e2e\n") as run:
        run.noise_key()


def data_of(base):
    settings = {"train_file": str(base / "data.jsonl")}
    load_task({"name": "text2text", **settings}).records("train")


REFUSED = {
    "record.json": lambda base: read_record(base),
    "ledger.jsonl": lambda base: read_ledger(base / "ledger.jsonl"),
    "identity.json": opened,
    "config.yaml": stored_config,
    "private/noise_key": key_of,
    "private/norms.jsonl": lambda base: read_norms(base / "private/norms.jsonl"),
    "data.jsonl": data_of,
    "list.txt": lambda base: read_list(base / "list.txt"),
    "sweep.json": lambda base: SweepFolder(base).points(),
}
DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "null": lambda data: b"null\n",
    "nested": lambda data: b"[" * 20_000 + b"\n",
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "noise": lambda data: bytes((7 * i * i + 13) % 256 for i in range(len(data))),
    "directory": None,
}
# Not damage: a torn end that a kill explains, or settings, which are checked when they are used.
GOOD = {
    ("half", "ledger.jsonl"),
    *((kind, "private/norms.jsonl") for kind in ("empty", "half", "noise")),
    *((kind, "list.txt") for kind in ("half", "null")),
    ("half", "config.yaml"),
}


def damage(file, kind):
    data = file.read_bytes()
    if DAMAGES[kind] is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(DAMAGES[kind](data))


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_file_is_refused_by_name(whole, name, tmp_path):
    REFUSED[name](whole)
    for kind in DAMAGES:
        copy = shutil.copytree(whole, tmp_path / kind)
        damage(copy / name, kind)
        if (kind, name) in GOOD:
            REFUSED[name](copy)
            continue
        with pytest.raises(DpftError) as caught:
            REFUSED[name](copy)
        assert (copy / name).name in str(caught.value), kind


@pytest.mark.parametrize("name", ["manifest.json", "part-00000.safetensors"])
def test_a_damaged_checkpoint_is_refused(whole, name, tmp_path):
    for kind in ("empty", "half", "noise", "directory"):
        copy = shutil.copytree(whole, tmp_path / kind)
        damage(copy / "checkpoints/step-00000002" / name, kind)
        with (
            RunDirectory.open(copy, CONFIG, "task: e2e\n") as run,
            pytest.raises(CheckpointError, match="step-00000002 is damaged"),
        ):
            checkpoint.load(run)
