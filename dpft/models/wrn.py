"""The wide residual network that is trained on CIFAR-10 with differential privacy.

Zagoruyko & Komodakis (2016) with the changes of De et al. (2022): group norm in place of batch
norm, whose statistics would mix records, and standardised convolution weights. He et al. (2022,
section 5.1 and appendix A.1) train WRN16-4. Importing this module makes transformers know it.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import ImageClassifierOutput


class WeightStandardizedConv2d(nn.Conv2d):
    """A convolution whose filters are standardised before use (Brock et al. 2021, eq. 1).

    A filter ``w`` of ``n`` numbers is used as ``(w - mean(w)) / sqrt(max(n var(w), eps))``: it has
    mean 0 and length 1, so that outputs keep the variance of independent inputs. There is no gain:
    scale and shift are left to the norm layers.
    """

    eps = 1e-4

    def standardised(self, weight: Tensor) -> Tensor:
        """Return the filters as they are used, in the shape of ``weight``."""
        filters = weight.flatten(1)
        centred = filters - filters.mean(1, keepdim=True)
        squared = centred.square().sum(1, keepdim=True)
        return (centred * squared.clamp(min=self.eps).rsqrt()).view_as(weight)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self._conv_forward(input, self.standardised(self.weight), self.bias)
        return output


class _Block(nn.Module):
    """Activation, norm, convolution; twice, next to a shortcut: ``(B, c, H, W)`` in."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int, first: bool) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs)
        self.conv1 = _conv(inputs, width, 3, stride)
        self.norm2 = nn.GroupNorm(groups, width)
        self.conv2 = _conv(width, width, 3, 1)
        self.shortcut = nn.Sequential()
        if first:
            norm = nn.GroupNorm(groups, inputs)
            self.shortcut = nn.Sequential(nn.ReLU(), norm, _conv(inputs, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(self.norm1(F.relu(x)))
        h = self.conv2(self.norm2(F.relu(h)))
        total: Tensor = self.shortcut(x) + h
        return total


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> WeightStandardizedConv2d:
    conv = WeightStandardizedConv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="linear")
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


class WideResNetConfig(PreTrainedConfig):
    """The settings of a network; mean and deviation are CIFAR-10's, a public constant."""

    model_type = "wide_resnet"
    # Two stages halve the image: one position of the last stage reads four pixels a side.
    patch_size = 4

    depth: int = 16  # 6 n + 4 layers for n blocks in each of the three stages
    width: int = 4  # factor on the stages' 16, 32 and 64 channels
    num_channels: int = 3
    groups: int = 16  # of each group norm; divides 16
    image_size: int = 32
    image_mean: list[float] | tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    image_std: list[float] | tuple[float, ...] = (0.2470, 0.2435, 0.2616)


class WideResNetForImageClassification(PreTrainedModel):
    """A wide residual network for small images, as a model of transformers.

    The order within blocks (activation before norm), the shortcuts with a separate norm and
    the biases follow the network published with De et al. (2022). Apart from it, the standardised
    weights have no gain, and a convolution of stride 2 pads one pixel on each side (there: on one).
    """

    config_class = WideResNetConfig
    main_input_name = "pixel_values"

    def __init__(self, config: WideResNetConfig) -> None:
        super().__init__(config)
        blocks, rest = divmod(config.depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth is {config.depth}; expected 6 n + 4, such as 10, 16, 28 or 40")
        self.stem = _conv(config.num_channels, 16, 3, 1)
        stages: list[nn.Module] = []
        inputs, groups = 16, config.groups
        for stage, stride in enumerate((1, 2, 2)):
            outputs = 16 * config.width * 2**stage
            for block in range(blocks):
                first = block == 0
                stages.append(_Block(inputs, outputs, stride if first else 1, groups, first))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.norm = nn.GroupNorm(groups, inputs)
        assert config.num_labels is not None
        self.head = nn.Linear(inputs, config.num_labels)
        nn.init.kaiming_normal_(self.head.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.bias)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, pixel_values: Tensor, **kwargs: Any) -> ImageClassifierOutput:
        """Return logits ``(B, num_labels)`` of images ``(B, num_channels, H, W)`` of unit scale."""
        h = self.norm(F.relu(self.blocks(self.stem(pixel_values))))
        return ImageClassifierOutput(logits=self.head(h.mean((2, 3))))

    def _init_weights(self, module: nn.Module) -> None:
        # As they were drawn, with functions that leave loaded weights alone.
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            initialization.kaiming_normal_(module.weight, nonlinearity="linear")
            assert module.bias is not None
            initialization.zeros_(module.bias)
        elif isinstance(module, nn.GroupNorm):
            initialization.ones_(module.weight)
            initialization.zeros_(module.bias)


# Transformers finds the model by the ``model_type`` of its config.
AutoConfig.register(WideResNetConfig.model_type, WideResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(
    WideResNetConfig, WideResNetForImageClassification, exist_ok=True
)
