"""Whole runs with adapters: continued bit for bit, decoded again, recorded."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import dpft.models
from dpft.cli.results import decode as decode_again
from dpft.config.compose import compose
from dpft.config.errors import ModelError
from dpft.config.flags import Flag, flag, sentences
from dpft.config.schema import Model, parse
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.runs.lineage import lineage_caveats, lineage_of, read_lineage
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.runs.example import example_guarantee
from tests.small_runs import trained as train_only

SMALL = ["task.source=sample", "task.limit_train=48", "task.limit_eval=2", "optim.batch_size=12"]
SMALL += ["optim.steps=3", "decode=greedy", "decode.max_new_tokens=4", "checkpoint_every=1"]
SMALL += ["threads=1", "privacy.noise_seed=1"]
pytestmark = pytest.mark.usefixtures("quick_scores")


def settings(tmp_path, *overrides):
    return parse(compose([*SMALL, f"runs_dir={tmp_path}", *overrides]))


@pytest.mark.parametrize(
    ("name", "weights"),
    [("prefix", "adapter/adapter_model.safetensors"), ("rgp", "model.safetensors")],
)
def test_a_run_is_continued_bit_for_bit_and_decoded_again(tmp_path, name, weights):
    whole = run_experiment(settings(tmp_path, "name=whole", f"adapt={name}"))
    assert whole.record["model"]["adaptation"] == name
    trained = whole.record["model"]["trainable_parameters"]
    assert 0 < trained < whole.record["model"]["parameters"] / 2

    broken = settings(tmp_path, "name=broken", f"adapt={name}")
    train_only(broken)
    newest = sorted((tmp_path / "broken/checkpoints").iterdir())[-1]
    shutil.rmtree(newest)  # so that it continues from the one before
    run_experiment(broken)
    for file in (f"model/{weights}", "ledger.jsonl", "generations/test.jsonl"):
        left, right = tmp_path / "whole" / file, tmp_path / "broken" / file
        assert left.read_bytes() == right.read_bytes(), file

    generations = whole.path / "generations/test.jsonl"
    first = generations.read_text()
    assert all(json.loads(line)["prediction"] for line in first.splitlines())
    generations.unlink()
    decode_again(whole.path, [])
    assert generations.read_text() == first


def test_a_run_that_goes_on_from_another_says_what_it_owes(tmp_path):
    """Flags stay with the weights, and a base that had no privacy is named next to the epsilon."""
    public = ["model.init=scratch", "adapt=scratch", "clip=none"]
    first = run_experiment(settings(tmp_path, "name=first", *public))
    base = ["model=custom", f"model.path={first.path / 'model'}"]
    second = run_experiment(settings(tmp_path, "name=second", *base))
    before = "base trained before on e2e (generated sample data; first 48 training records only) "
    for label in ("random initialisation", f"{before}without privacy"):
        assert label in sentences(second.record["flags"])
    card = (second.path / "model" / "README.md").read_text()
    assert f"{before}without privacy" in card
    assert "what it learned of a record there, this run's epsilon does not bound" in card
    third = run_experiment(
        settings(tmp_path, "name=third", "model=custom", f"model.path={second.path / 'model'}")
    )
    assert sum(one["flag"] == Flag.TRAINED_BEFORE for one in third.record["flags"]) == 2
    # The run's own model, decoded again, is not its own base.
    decode_again(third.path, ["decode.max_new_tokens=2"])
    assert json.loads((third.path / "record.json").read_text())["flags"] == third.record["flags"]
    # A run of no steps has learned nothing.
    none = run_experiment(settings(tmp_path, "name=none", "optim.steps=0"))
    assert "trained before" not in (none.path / "model" / "dpft.json").read_text()


def test_a_prefix_is_named_on_the_card_and_is_no_base(tmp_path):
    first = run_experiment(settings(tmp_path, "name=first", "adapt=prefix"))
    card = (first.path / "model" / "README.md").read_text()
    assert "are the unchanged weights of the base model" in card
    assert "The trained part is the prefix in" in card
    base = load_model(Model("tiny", "bundled:tiny"), Needs("causal"), seed=0).model.state_dict()
    frozen = loaded_run(first.path).loaded.model.get_base_model().state_dict()
    assert all(torch.equal(frozen[key], base[key]) for key in base)
    with pytest.raises(ModelError, match="a prefix cannot be trained further"):
        run_experiment(
            settings(tmp_path, "name=second", "model=custom", f"model.path={first.path / 'model'}")
        )


@pytest.mark.parametrize(
    ("voided_by", "said"),
    [(["refuted"], "; REFUTED BY ITS AUDIT"), ([], "by Renyi accounting")],
)
def test_what_voids_a_guarantee_goes_with_the_weights(voided_by, said):
    bundled = flag(Flag.BUNDLED_MODEL, name="tiny")
    record = {
        "flags": [bundled, flag(Flag.LIMITED_TRAIN, limit=8)],
        "model": {"flags": [bundled]},
        "dataset": {"task": "e2e"},
        "training": {"steps": 4},
        "privacy": example_guarantee(voided_by=voided_by),
    }
    first, second = sentences(json.loads(lineage_of(record))["flags"])
    assert first == "bundled tiny model"
    assert second.startswith("base trained before on e2e (first 8 training records only): (3")
    assert second.endswith(said)


@pytest.mark.parametrize("content", ["{", '{"flags": null}'])
def test_a_lineage_that_cannot_be_read_is_not_an_empty_one(tmp_path, content):
    file = tmp_path / "dpft.json"
    file.write_text(content, encoding="latin-1")
    assert lineage_caveats(read_lineage(file))
    file.write_text('{"flags": []}')
    assert read_lineage(file) == read_lineage(tmp_path / "none.json") == read_lineage(None) == ()


def test_a_model_with_an_adapter_beside_it_is_refused(tmp_path):
    """An upload may leave both: transformers would put the adapter on the weights."""
    shutil.copytree(Path(dpft.models.__file__).parent / "tiny", tmp_path / "both")
    (tmp_path / "both" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelError, match=r"both holds a model and adapter_config\.json"):
        load_model(Model("custom", str(tmp_path / "both")), Needs("causal"), seed=0)
