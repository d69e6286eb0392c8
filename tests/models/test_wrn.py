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
    WideResNetConfig,
    WideResNetForImageClassification,
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


@pytest.mark.parametrize(("depth", "width", "classes"), [(10, 1, 10), (10, 2, 100), (16, 1, 7)])
def test_logits_have_one_row_for_each_image(depth, width, classes):
    model = WideResNet(classes, depth=depth, width=width)
    assert model(pixel_values=torch.randn(2, 3, 16, 16)).shape == (2, classes)


def test_stages_halve_the_image():
    model = WideResNet(depth=10, width=1)
    shapes = []
    for block in model.blocks:
        block.register_forward_hook(lambda m, a, y: shapes.append(tuple(y.shape[1:])))
    model(torch.randn(1, 3, 32, 32))
    assert shapes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


@pytest.mark.parametrize("depth", [4, 15, 0])
def test_a_depth_that_fits_no_number_of_blocks_is_refused(depth):
    with pytest.raises(ValueError, match="expected 6 n"):
        WideResNet(depth=depth)


def test_an_image_s_logits_do_not_depend_on_the_others():
    torch.manual_seed(0)
    model, x = WideResNet(depth=10, width=1).double(), torch.randn(3, 3, 8, 8).double()
    torch.testing.assert_close(model(x)[1:2], model(x[1:2]), rtol=1e-10, atol=1e-10)


def test_standardised_filters_have_mean_0_and_length_1():
    torch.manual_seed(0)
    conv = WeightStandardizedConv2d(4, 6, 3).double()
    filters = conv.standardised(conv.weight).flatten(1)
    torch.testing.assert_close(filters.mean(1), torch.zeros(6).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(filters.norm(dim=1), torch.ones(6).double())
    conv.weight.data.fill_(0.5)
    assert not conv.standardised(conv.weight).any()


# As a model of transformers.


def test_it_is_the_same_network_under_the_same_names():
    torch.manual_seed(0)
    network, config = WideResNet(7, depth=10, width=2), WideResNetConfig(depth=10, width=2)
    config.num_labels = 7
    model = WideResNetForImageClassification(config)
    model.load_state_dict(network.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(x).logits, network(x))


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
