"""``optim.microbatch_tokens=auto`` finds a number once, and the run keeps it."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from dpft import runs
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.training import microbatch
from dpft.training.planned_step import shape_of
from dpft.training.run import run_experiment
from tests.training.test_run import config

GIB = 2**30


@pytest.fixture
def go(tmp_path, monkeypatch):
    free = {"bytes": 0.1 * GIB}
    monkeypatch.setattr(microbatch, "available", lambda: free["bytes"])
    monkeypatch.setattr("dpft.training.run._decode_stage", lambda *_: None)

    def run(room=None, *words):
        free["bytes"] = free["bytes"] if room is None else room
        asked = ("name=one", "privacy.noise_seed=1", "optim.microbatch_tokens=auto", *words)
        return run_experiment(parse(config(tmp_path, *asked)))

    return run, tmp_path / "one"


def interrupted(*_):
    raise KeyboardInterrupt


def test_what_released_steps_had_is_not_found_anew(go, monkeypatch):
    run, path = go
    kept = path / "private/microbatches.json"
    with monkeypatch.context() as patched:
        patched.setattr("dpft.training.session.Session._save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    note = kept.read_text()
    tokens = json.loads(note)["tokens"]
    assert tokens > 100
    assert runs.read_ledger(path / "ledger.jsonl").steps_spent
    kept.unlink()
    with pytest.raises(runs.RunError, match=r"microbatches\.json is missing"):
        run()
    kept.write_text(note.replace(f" {tokens},", f" {tokens + 1},"))
    with pytest.raises(runs.RunError, match="does not match its own checksum"):
        run()
    kept.write_text(note)
    assert run(1000.0).record["training"]["steps"]  # less room now, and the same number


def test_too_little_memory_is_said_before_anything_is_begun(go):
    run, path = go
    with pytest.raises(ConfigError, match=r"not one record of \d+ tokens fits"):
        run(1000.0)
    assert not path.exists()


def test_what_is_not_simulated_asks_for_a_number(go):
    run, _ = go
    with pytest.raises(ConfigError, match=r"adapt is prefix.*microbatch_tokens=4096"):
        run(None, "adapt=prefix")


def test_a_gpu_is_tried_until_it_runs_out(monkeypatch):
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: taken[-1])
    taken = []

    def steps(training, meter, model, **options):
        taken.append(100 * training.batch)
        if taken[-1] > 1250:
            raise torch.OutOfMemoryError("out of memory")

    def training_of(run, shape):
        return SimpleNamespace(build=lambda: None, batch=shape.batch)

    monkeypatch.setattr(microbatch, "steps", steps)
    monkeypatch.setattr(microbatch, "training_of", training_of)
    run = parse(compose(["model=random-gpt2", "optim.microbatch_tokens=auto"]))
    peak = microbatch._tried(run, shape_of(run, 1, length=8), torch.device("cpu"))
    assert (peak(3), peak(13)) == (300, math.inf)
    assert microbatch.largest(peak, 10**6, 1000) == 12
    assert microbatch.largest(peak, 1000, 1000) == 10
