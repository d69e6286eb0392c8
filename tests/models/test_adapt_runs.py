"""Whole runs with adapters: continued bit for bit, decoded again, recorded."""

import json

import pytest
import yaml

from dpft.commands.decode import main as decode_again
from dpft.compose import compose
from dpft.config import parse
from dpft.errors import ConfigError
from dpft.experiment import run_experiment

SMALL = [
    "task.source=sample",
    "task.limit_train=48",
    "task.limit_eval=2",
    "optim.batch_size=12",
    "optim.steps=3",
    "decode=greedy",
    "decode.max_new_tokens=4",
    "checkpoint_every=1",
    "threads=1",
    "privacy.noise_seed=1",
]


@pytest.fixture(autouse=True)
def _quick_scores(monkeypatch):
    monkeypatch.setattr("dpft.metrics.e2e.score", lambda predictions, references: {"BLEU": 0.5})
    monkeypatch.setattr("dpft.metrics.e2e.signature", lambda: "quick")


def settings(tmp_path, *overrides):
    return parse(compose([*SMALL, f"runs_dir={tmp_path}", *overrides]))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("lora", "adapter/adapter_model.safetensors"),
        ("prefix", "adapter/adapter_model.safetensors"),
        ("rgp", "model.safetensors"),
    ],
)
def test_a_run_is_continued_bit_for_bit_and_decoded_again(tmp_path, monkeypatch, name, weights):
    whole = run_experiment(settings(tmp_path, "name=whole", f"adapt={name}"))
    assert whole.record["model"]["adaptation"] == name
    trained = whole.record["model"]["trainable_parameters"]
    assert 0 < trained < whole.record["model"]["parameters"] / 2

    def stop(*arguments, **keywords):
        raise KeyboardInterrupt

    broken = settings(tmp_path, "name=broken", f"adapt={name}")
    with monkeypatch.context() as patch:
        patch.setattr("dpft.experiment._decode_stage", stop)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(broken)
    newest = sorted((tmp_path / "broken/checkpoints").iterdir())[-1]
    (newest / "model.safetensors").write_bytes(b"")  # damaged: the one before is taken
    run_experiment(broken)
    for file in (f"model/{weights}", "ledger.jsonl", "generations/test.jsonl"):
        left, right = tmp_path / "whole" / file, tmp_path / "broken" / file
        assert left.read_bytes() == right.read_bytes(), file

    decode_again(whole.path, [])
    first = (whole.path / "generations/test.jsonl").read_text()
    again = [line for line in first.splitlines() if line]
    assert [json.loads(line)["prediction"] for line in again]
    record = json.loads((whole.path / "record.json").read_text())
    assert (whole.path / record["generations"]["test"]).read_text() == first


def test_scratch_is_labelled_and_says_so_in_its_settings(tmp_path):
    outcome = run_experiment(settings(tmp_path, "name=scratch", "adapt=scratch", "optim.steps=1"))
    assert "random initialisation" in outcome.record["labels"]
    assert outcome.record["config"]["model"]["init"] == "scratch"
    assert yaml.safe_load((outcome.path / "config.yaml").read_text())["adapt"]["name"] == "scratch"
    with pytest.raises(ConfigError, match=r"model\.init is pretrained with adapt=scratch"):
        settings(tmp_path, "adapt=scratch", "model.init=pretrained")
