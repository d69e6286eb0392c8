"""Half precision anywhere on the way to the losses, not only in what is trained.

Frozen layers in bfloat16 below adapters in float32 are the usual way to save memory, and there no
trained layer's input or output gradient is in half precision itself.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.clipping.rules import RULES
from tests.privacy.reference import clear, grads_of

C = 0.01
STYLES = ("bk", "materialised", "ghost", "lee_kifer", "per_layer")


class Adapted(nn.Module):
    """A frozen layer in bfloat16, and two trained ones in float32 next to it."""

    def __init__(self, inputs, outputs, type_of_b=nn.Linear):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).bfloat16().requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, 4, bias=False), type_of_b(4, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x.float())).bfloat16()


class Classifier(nn.Module):
    """Two of those, and a frozen head in bfloat16, whose logits are in bfloat16 too."""

    def __init__(self, type_of_b=nn.Linear):
        super().__init__()
        self.first, self.second = Adapted(16, 32), Adapted(32, 16, type_of_b)
        self.head = nn.Linear(16, 10).bfloat16().requires_grad_(False)

    def forward(self, x):
        return self.head(self.second(F.gelu(self.first(x.bfloat16()))))


def size(model):
    return math.sqrt(sum(g.double().square().sum().item() for g in grads_of(model).values()))


def losses_of(logits, dtype, first=0):
    labels = (first + torch.arange(len(logits))) % logits.shape[1]
    return F.cross_entropy(logits.to(dtype), labels, reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("style", STYLES)
def test_adapters_above_a_rounded_model_are_clipped_exactly(style, dtype):
    torch.manual_seed(0)
    model = Classifier()
    clipper = make_clipper(model, style, threshold=C)
    for i in range(40):
        clear(model)
        clipper.backward(losses_of(model(3 * torch.randn(1, 16)), dtype, first=i))
        assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
        assert 0.999 * C < size(model) <= C * (1 + 1e-6)


class Tripled(nn.Linear):
    """Not what its type's rule says."""

    def forward(self, x):
        return 3 * F.linear(x, self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_rule_is_seen_above_a_rounded_model(dtype):
    model = Classifier(type_of_b=Tripled)
    (linear,) = (rule for name, rule in RULES.items() if name.endswith("linear.Linear"))
    rules = {f"{Tripled.__module__}.{Tripled.__qualname__}": linear}
    clipper = make_clipper(model, "bk", threshold=C, rules=rules)
    with pytest.raises(UnsupportedLayerError, match=r"second\.b\.weight"):
        clipper.backward(losses_of(model(torch.randn(4, 16)), dtype))
