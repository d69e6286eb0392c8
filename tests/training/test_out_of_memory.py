"""Memory runs out: the run ends, and the message names the settings to change."""

import pytest
import torch

from dpft import runs
from dpft.config.errors import TrainingError
from dpft.config.schema import parse
from dpft.runs.environment import explained
from dpft.tasks.objectives.causal import Causal
from dpft.training.run import run_experiment
from tests.training.test_run import config

CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
)
ERRORS = (CPU, MemoryError(), torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate"))


@pytest.mark.parametrize("error", ERRORS)
def test_every_kind_is_explained_in_one_line(error):
    said = r"memory in a step \(.+\); expected .*: buy some$"
    with pytest.raises(TrainingError, match=said) as caught, explained("a step", "buy some"):
        raise error
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyError), explained("a step", "buy some"):
        raise KeyError("x")


def test_the_run_ends_and_the_same_command_continues_it(tmp_path, monkeypatch):
    whole, ledger = Causal.losses, tmp_path / "one/ledger.jsonl"

    def short(self, model, batch):
        if ledger.exists() and runs.read_ledger(ledger).steps_spent >= 2:
            raise CPU
        return whole(self, model, batch)

    monkeypatch.setattr("dpft.training.run._decode_stage", lambda *_: None)
    words = ["name=one", "privacy.noise_seed=1", "optim.microbatch_tokens=512"]
    run = parse(config(tmp_path, *words, "checkpoint_every=100"))
    with monkeypatch.context() as patch:
        patch.setattr(Causal, "losses", short)
        with pytest.raises(TrainingError) as caught:
            run_experiment(run)
    advice = ("A smaller optim.microbatch_tokens", "model.checkpointing=true")
    for word in ("optim.microbatch_tokens=512", "the same command again", *advice):
        assert word in str(caught.value)
    before = ledger.read_bytes()
    assert runs.read_ledger(ledger).steps_spent == 2
    assert run_experiment(run).record["training"]["steps"] == 4
    assert ledger.read_bytes().startswith(before)
