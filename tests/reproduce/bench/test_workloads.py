"""The benchmark's models have the papers' sizes, and losses by record."""

import pytest
import torch

from dpft.reproduce.bench.catalog import MODELS
from dpft.reproduce.bench.workloads import build, losses

PARAMETERS = {
    "tiny": 757_248,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "smollm2-135m": 134_515_008,
    "roberta-base": 124_647_170,
    "vit-small": 21_669_514,
    "vit-base": 85_806_346,
    "wrn16-4": 2_751_562,
}


def make(name, untied=False, device="meta", length=None):
    length = length or MODELS[name].length
    return build(name, length=length, untied=untied, seed=0, device=device, dtype=torch.float32)


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes(name):
    """On the meta device: shapes without numbers."""
    workload = make(name)
    counted = sum(parameter.numel() for parameter in workload.model.parameters())
    assert counted == PARAMETERS[name]
    assert workload.model.training
    assert {len(value) for value in workload.inputs(3).values()} == {3}
    dropouts = [m.p for m in workload.model.modules() if isinstance(m, torch.nn.Dropout)]
    assert not any(dropouts)


@pytest.mark.parametrize("name", ["tiny", "wrn16-4"])
def test_losses_depend_on_their_own_record_alone(name):
    workload = make(name, device="cpu")
    inputs = workload.inputs(3)
    found = losses(workload, workload.model, inputs, "float32")
    assert found.shape == (3,)
    alone = {key: value[1:2] for key, value in inputs.items()}
    torch.testing.assert_close(losses(workload, workload.model, alone, "float32")[0], found[1])
