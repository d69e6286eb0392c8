"""The wide residual network: its size, its shapes, and records that do not see each other."""

import pytest
import torch
from torch import nn

from dpft.config.errors import ModelError
from dpft.config.flags import Flag, flag
from dpft.config.schema import Model
from dpft.models.image_input import ImageInput
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.wrn import (
    WeightStandardizedConv2d,
    WideResNet,
)

TEN = Needs("image", tuple("abcdefghij"))
WRN16_4 = Model("wrn16-4", "bundled:wrn16-4", init="scratch")


def test_wrn16_4_has_its_published_size():
    model = WideResNet()
    assert sum(p.numel() for p in model.parameters()) == 2_751_562
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    # The stem and two in each of six blocks; the shortcuts where the number of channels changes.
    assert [m.kernel_size[0] for m in convolutions].count(3) == 13
    assert [m.kernel_size[0] for m in convolutions].count(1) == 3
    assert all(isinstance(m, WeightStandardizedConv2d) for m in convolutions)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert {m.num_groups for m in norms} == {16}
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in model.modules())


def test_standardised_filters_have_mean_0_and_length_1():
    torch.manual_seed(0)
    conv = WeightStandardizedConv2d(4, 6, 3).double()
    filters = conv.standardised(conv.weight).flatten(1)
    torch.testing.assert_close(filters.mean(1), torch.zeros(6).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(filters.norm(dim=1), torch.ones(6).double())
    conv.weight.data.fill_(0.5)
    assert not conv.standardised(conv.weight).any()


# As a model of transformers.


def test_wrn16_4_is_drawn_as_published():
    loaded = load_model(WRN16_4, TEN, seed=0)
    model = loaded.model
    assert sum(p.numel() for p in model.parameters()) == 2_751_562
    assert loaded.flags == (flag(Flag.RANDOM_WEIGHTS),)
    assert loaded.tokenizer is None
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    assert loaded.image == ImageInput(32, mean, std, 4)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 1e4:
            fan = layer.weight[0].numel()
            torch.testing.assert_close(
                layer.weight.std() * fan**0.5, torch.tensor(1.0), atol=0.05, rtol=0
            )
            assert not layer.bias.any()
        if isinstance(layer, nn.GroupNorm):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()


def test_without_scratch_it_says_that_there_are_no_weights():
    with pytest.raises(
        ModelError, match=r"bundled:wrn16-4 .* no weights; type model\.init=scratch"
    ):
        load_model(Model("wrn16-4", "bundled:wrn16-4"), TEN, seed=0)
