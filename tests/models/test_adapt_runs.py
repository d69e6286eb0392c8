"""Whole runs with adapters: continued bit for bit, decoded again, recorded."""

import json

import pytest
import yaml

from dpft.commands.decode import main as decode_again
from dpft.compose import compose
from dpft.config import parse
from dpft.errors import ConfigError, ModelError
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


def test_a_run_that_goes_on_from_another_says_what_it_owes(tmp_path):
    """Labels stay with the weights, and a base that had no privacy is told beside the epsilon."""
    public = ["model.init=scratch", "adapt=scratch", "clip=none"]
    first = run_experiment(settings(tmp_path, "name=first", *public))
    base = ["model=custom", f"model.path={first.path / 'model'}"]
    second = run_experiment(settings(tmp_path, "name=second", *base))
    for label in ("random initialisation", "base trained before on e2e without privacy"):
        assert label in second.record["labels"]
    card = (second.path / "model" / "README.md").read_text()
    assert "base trained before on e2e without privacy" in card
    assert "what it learned of a record there, this run's epsilon does not bound" in card
    third = run_experiment(
        settings(tmp_path, "name=third", "model=custom", f"model.path={second.path / 'model'}")
    )
    assert sum(label.startswith("base trained before") for label in third.record["labels"]) == 2
    # The run's own model, decoded again, is not its own base.
    decode_again(third.path, ["decode.max_new_tokens=2"])
    assert json.loads((third.path / "record.json").read_text())["labels"] == third.record["labels"]
    # A run of no steps has learned nothing.
    none = run_experiment(settings(tmp_path, "name=none", "optim.steps=0"))
    assert "trained before" not in (none.path / "model" / "dpft.json").read_text()


def test_a_prefix_is_told_on_the_card_and_is_no_base(tmp_path):
    first = run_experiment(settings(tmp_path, "name=first", "adapt=prefix"))
    card = (first.path / "model" / "README.md").read_text()
    assert "The weights in this folder are the base model's, as they were" in card
    with pytest.raises(ModelError, match="a prefix cannot be trained further"):
        run_experiment(
            settings(tmp_path, "name=second", "model=custom", f"model.path={first.path / 'model'}")
        )


@pytest.mark.parametrize(
    ("overrides", "named"),
    [([], "bundled:tiny"), (["model.init=scratch"], None), (["model=random-openai-gpt"], None)],
)
def test_an_adapter_names_the_base_it_belongs_to_or_none(tmp_path, overrides, named):
    made = run_experiment(settings(tmp_path, "name=one", "adapt=lora", *overrides))
    config = json.loads((made.path / "model/adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == named


def test_an_adapter_tells_no_folder_of_the_machine(tmp_path):
    base = run_experiment(settings(tmp_path, "name=base")).path / "model"
    made = run_experiment(
        settings(tmp_path, "name=one", "adapt=lora", "model=custom", f"model.path={base}")
    )
    config = json.loads((made.path / "model/adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "model"
    assert str(tmp_path) not in (made.path / "model/dpft.json").read_text()
