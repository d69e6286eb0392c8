"""Parameter counts in docs/reference/models.md are those of the architectures."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

from dpft.config.schema import Model
from dpft.models.families import SIZED, STANDINS, sized
from dpft.models.load import load_model
from dpft.models.needs import Needs
from tests.models.test_standins import KINDS, NEEDS

DOCS = Path(__file__).parents[2] / "docs/reference/models.md"
CONF = DOCS.parents[2] / "conf/model"
TEN = tuple("abcdefghij")


def stated():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|.*?\| ([0-9,]{6,}) \|", DOCS.read_text(), re.MULTILINE)
    rows += re.findall(r"^\| `([a-z0-9-]+)` \| ([0-9,]{6,}) \|", DOCS.read_text(), re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in rows}


def count(kind, config):
    with torch.device("meta"):
        return sum(p.numel() for p in kind.from_config(config).parameters())


CLASSES = {"gpt2": AutoModelForCausalLM, "llama": AutoModelForCausalLM}
CLASSES |= {"roberta": AutoModelForMaskedLM, "vit": AutoModelForImageClassification}
CLASSES |= {"t5": AutoModelForSeq2SeqLM}
# Others than `SIZED` has.
OFFLINE = {"tiny": ("bundled:tiny", "causal"), "wrn16-4": ("bundled:wrn16-4", "image")}
OFFLINE |= {f"random-{family}": (f"random:{family}", kinds[-1]) for family, kinds in KINDS.items()}


def test_sizes_that_are_known_without_the_hub_are_the_published():
    """By which `dpft plan` simulates; a classifier's head has as many rows as the table's."""
    files = {file.stem: yaml.safe_load(file.read_text()) for file in CONF.glob("*.yaml")}
    known = {name: sized(file["path"]) for name, file in files.items() if file["path"] in SIZED}
    assert len(known) == len(SIZED)
    for name, config in known.items():
        if config.model_type == "vit":
            config.num_labels = len(TEN)
        assert stated()[name] == count(CLASSES[config.model_type], config)


@pytest.mark.parametrize("name", OFFLINE)
def test_sizes_of_what_loads_offline(name):
    path, kind = OFFLINE[name]
    needs = Needs("image", TEN) if kind == "image" else NEEDS[kind]
    model = load_model(Model(name, path, init="scratch"), needs, seed=0).model
    assert stated()[name] == sum(p.numel() for p in model.parameters())


def test_every_config_file_has_its_row():
    files = {file.stem for file in CONF.glob("*.yaml")}
    assert set(stated()) == files - {"custom"}
    assert {f"random-{family}" for family in STANDINS} <= files
