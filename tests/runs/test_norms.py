"""Gradient norms of single records: when asked for, and without changing anything else."""

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.runs import NORMS, NormsLog, RunError, config_hash, read_ledger, read_norms
from dpft.training.run import run_experiment

SMALL = [
    *("task.source=sample", "task.limit_train=48", "task.limit_eval=2", "optim.batch_size=16"),
    *("optim.steps=3", "decode=greedy", "decode.max_new_tokens=3", "threads=1"),
    *("clip=per_layer", "privacy.noise_seed=1"),
]


def test_nothing_is_written_unless_asked_for(tmp_path):
    with NormsLog(tmp_path, None, ["a"]) as log:
        log.append(0, [torch.ones(1, 1)])
    assert not list(tmp_path.iterdir())


def test_every_so_many_steps_and_again_from_where_a_run_goes_on(tmp_path):
    with NormsLog(tmp_path, 2, ["a", "b"]) as log:
        for step in range(5):
            log.append(step, [torch.full((1, 2), float(step)), torch.full((2, 2), 0.1234567)], 3, 4)
        log.append(6, [])  # an empty batch
    with NormsLog(tmp_path, 2, ["a", "b"], resume_step=3) as log:
        log.append(4, [torch.tensor([[7.0, 8.0]])])
    found = read_norms(tmp_path / NORMS)
    assert [(one.step, len(one.values)) for one in found] == [(0, 3), (2, 3), (4, 1)]
    assert found[0].values[1] == (0.123457, 0.123457)
    assert found[2].values == ((7.0, 8.0),)
    assert [(one.signal, one.noise) for one in found[1:]] == [(3, 4), (None, None)]
    assert (tmp_path / NORMS).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("line", ['{"step": 1}', '{"step": 1, "groups": ["a"], "norms": [[1, 2]]}'])
def test_damage_is_named_by_its_line(tmp_path, line):
    file = tmp_path / NORMS
    file.write_text('{"step": 0, "groups": [], "norms": []}\n' + line + "\n")
    with pytest.raises(RunError, match=r"norms\.jsonl, line 2: .*delete that line"):
        read_norms(file)


def test_recording_changes_nothing_that_is_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "dpft.tasks.metrics.e2e.score", lambda predictions, references: {"BLEU": 0.5}
    )
    monkeypatch.setattr("dpft.tasks.metrics.e2e.signature", lambda: "quick")
    plain, recording = (
        parse(compose([*SMALL, f"runs_dir={tmp_path}", f"name={name}", *more]))
        for name, more in (("plain", []), ("recording", ["record_norms=2"]))
    )
    assert config_hash(plain.identity()) == config_hash(recording.identity())
    one, other = run_experiment(plain), run_experiment(recording)
    assert read_ledger(one.path / "ledger.jsonl") == read_ledger(other.path / "ledger.jsonl")
    assert not (one.path / "private" / NORMS).exists()
    found = read_norms(other.path / "private" / NORMS)
    assert [step.step for step in found] == [0, 2]
    assert len(found[0].groups) > 5
    mechanism = other.record["mechanism"]
    size = other.record["model"]["trainable_parameters"]
    std = mechanism["noise_multiplier"] * mechanism["sensitivity"] / mechanism["batch_size"]
    assert found[0].noise == pytest.approx(std * size**0.5)
    assert 0 < found[0].signal < mechanism["sensitivity"] * 48 / mechanism["batch_size"]
    assert "record_norms" not in other.record["config"]


def test_the_number_of_steps_is_checked_and_may_be_absent():
    raw = compose(["task=e2e"])
    assert parse({k: v for k, v in raw.items() if k != "record_norms"}).record_norms is None
    for value in (0, -3, 1.5, "often"):
        with pytest.raises(ConfigError, match="record_norms is"):
            parse({**raw, "record_norms": value})
