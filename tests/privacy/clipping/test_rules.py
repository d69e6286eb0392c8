"""Every rule's uses equal one autograd backward per record, in float64, in every form."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from dpft.models import layer_rules
from dpft.models.wrn import WeightStandardizedConv2d
from dpft.privacy.clipping.rules import LayerRules
from dpft.privacy.clipping.rules import layers as convolutions
from dpft.privacy.clipping.rules.layers import ConvUse
from dpft.privacy.clipping.rules.uses import DirectUse, Form
from tests.covering import covering

KNOWN = LayerRules(families=[layer_rules])
TOLERANCE = 1e-10
BATCH = 3


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def shaken(module, seed=0):
    """In float64, with every parameter away from its initial value."""
    torch.manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def images(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def uses_and_truth(module, x, layout=lambda g: g):
    """The rule's uses of one call, and by parameter each record's gradient by autograd.

    `layout` gives the output gradient strides, and may give it other values.
    """
    with torch.no_grad():
        v = layout(torch.randn_like(module(x)))
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    truth = {name: torch.zeros(len(x), *p.shape).double() for name, p in trained.items()}
    for i in range(len(x)):
        loss = (module(x[i : i + 1]) * v[i : i + 1]).sum()
        for name, g in zip(trained, torch.autograd.grad(loss, trained.values()), strict=True):
            truth[name][i] = g
    rule = KNOWN.find(module)
    with torch.no_grad():
        a = x if rule.needs_input(module) else None
        uses = rule.uses(module, a, v)
    assert set(uses) == set(truth)
    return uses, truth


def check_use(use, truth):
    """Everything that clipping asks of a use."""
    batch = len(truth)
    weights = torch.linspace(0.2, 1.0, batch).double()
    total = torch.tensordot(weights, truth, dims=1)
    close(use.per_example(), truth)
    norm = use.squared_norm()
    close(norm.value, truth.square().flatten(1).sum(1))
    assert (norm.scale >= norm.value * (1 - 1e-12)).all()
    close(use.weighted_sum(weights), total)
    for start in (torch.ones_like(total), torch.ones(*total.shape, 2).double()[..., 0]):
        use.add_weighted_sum(weights, start)
        close(start, total + 1)
    index = torch.tensor([batch - 1, 0])
    close(use.rows(index).per_example(), truth[index])
    dropped = torch.arange(batch) == 0
    silent = use.without(dropped)
    close(silent.squared_norm().value[0], torch.zeros(()).double())
    close(silent.weighted_sum(weights), total - weights[0] * truth[0])


def check(module, x, layout=lambda g: g):
    uses, truth = uses_and_truth(module, x, layout)
    with torch.no_grad():
        for name, use in uses.items():
            for form in (use, *map(use.cheapest_form, (True, False))):
                check_use(form, truth[name])


def check_conv(module, x):
    """In each form, by each way of forming gradients and Gram matrices."""
    check(module, x)
    for form in Form:
        for pixels, grouped in ((0, 0), (10**12, 10**12)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ConvUse, "chosen", lambda self, transient, form=form: form)
                patch.setattr(ConvUse, "_pixel_time", lambda self, time=pixels: time)
                patch.setattr(convolutions, "_GROUPED_POSITIONS", grouped)
                patch.setattr(convolutions, "_GROUPED_CHANNELS", 0)
                patch.setattr(convolutions, "_GROUPED_NUMBERS", 2 * module.weight.numel())
                patch.setattr(convolutions, "PIECE", 1)
                check(module, x)


LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (BATCH, 6, 5)),
    "linear of one position": (lambda: nn.Linear(5, 4), (BATCH, 5)),
    "transposed linear": (lambda: Conv1D(4, 5), (BATCH, 6, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (BATCH, 4, 5)),
    "layer norm over two dimensions": (lambda: nn.LayerNorm((4, 5)), (BATCH, 2, 4, 5)),
    "rms norm": (lambda: nn.RMSNorm(5), (BATCH, 4, 5)),
    "rms norm of one position": (lambda: nn.RMSNorm((4, 5)), (BATCH, 4, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (BATCH, 6, 4, 3)),
    "group norm of sequences": (lambda: nn.GroupNorm(3, 6, eps=0.1), (BATCH, 6, 4)),
}


# As autograd and models give them: a sum over positions expands its gradient, a transposed view
# has the strides of what it is a view of.
LAYOUTS = {
    "as it is": lambda x: x,
    "expanded over all but records": lambda x: (
        x.flatten(1)[:, :1].view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    ),
    "expanded over everything": lambda x: x.flatten()[0].expand_as(x),
    "transposed": lambda x: x.transpose(1, -1).contiguous().transpose(1, -1),
    "records last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}
LAID_OUT = LAYERS | {
    "grouped convolution": (lambda: nn.Conv2d(4, 4, 3, groups=2, padding=1), (BATCH, 4, 5, 6)),
    "standardised convolution": (lambda: WeightStandardizedConv2d(4, 6, 3), (BATCH, 4, 5, 6)),
}


@pytest.mark.parametrize(
    ("name", "layout", "records"), covering(tuple(LAID_OUT), tuple(LAYOUTS), (BATCH, 1))
)
def test_layers_equal_the_autograd_loop_whatever_the_layout_of_input_and_gradient_in_memory(
    name, layout, records
):
    build, shape = LAID_OUT[name]
    module, x = shaken(build()), images(records, *shape[1:])
    check(module, x, LAYOUTS[layout])
    if name != "transposed linear":  # whose own forward takes contiguous inputs only
        check(module, LAYOUTS[layout](x))


@pytest.mark.parametrize("length", [1, 6])
def test_an_embedding_equals_the_autograd_loop(length):
    module = shaken(nn.Embedding(7, 4, padding_idx=2))
    check(module, torch.randint(0, 7, (BATCH, length)))


def norm_of(name):
    family, prefix = name.split(".")
    module = __import__(f"transformers.models.{family}.modeling_{family}", fromlist=["_"])
    return getattr(module, f"{prefix}RMSNorm")


@pytest.mark.parametrize("name", ["glm.Glm", "qwen3.Qwen3", "gemma3.Gemma3", "olmo2.Olmo2"])
def test_norms_have_llamas_rule_if_they_have_its_forward(name):
    expected = KNOWN.find(LlamaRMSNorm(6)) if name in ("glm.Glm", "qwen3.Qwen3") else None
    assert KNOWN.find(norm_of(name)(6, eps=1e-3)) is expected


@st.composite
def convolutions_2d(draw, cls=nn.Conv2d):
    groups = draw(st.integers(1, 3))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(
        st.one_of(st.just("same"), st.just("valid"), st.tuples(*[st.integers(0, 2)] * 2))
    )
    if padding == "same":
        stride = (1, 1)
    height, width = draw(st.tuples(st.integers(3, 7), st.integers(3, 7)))
    added = (0, 0) if isinstance(padding, str) else padding
    if padding != "same":
        for size, k, d, p in zip((height, width), kernel, dilation, added, strict=True):
            assume(size + 2 * p >= d * (k - 1) + 1)
    module = cls(
        groups * draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)),
        kernel,
        stride,
        padding,
        dilation,
        groups,
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
    )
    return shaken(module), images(draw(st.integers(1, 3)), module.in_channels, height, width)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@settings(max_examples=30)
@given(case=convolutions_2d())
def test_convolutions_of_any_geometry_equal_the_autograd_loop(case):
    check_conv(*case)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@settings(max_examples=15)
@given(case=convolutions_2d(WeightStandardizedConv2d))
def test_standardised_convolutions_of_any_geometry_equal_the_autograd_loop(case):
    module, x = case
    # Filters of one number are standardised to 0, and of two to a constant.
    assume(module.weight[0].numel() > 2)
    check_conv(module, x)


CONVOLUTIONS = {
    "plain": (lambda: nn.Conv2d(4, 6, 3, padding=1), (BATCH, 4, 5, 5)),
    "one position": (lambda: nn.Conv2d(2, 3, 4), (BATCH, 2, 4, 4)),
    "patches": (lambda: nn.Conv2d(3, 5, 4, stride=4), (BATCH, 3, 8, 8)),
    "pointwise, strided": (lambda: nn.Conv2d(3, 5, 1, stride=2), (BATCH, 3, 7, 7)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (BATCH, 4, 5, 5)),
    "standardised": (lambda: WeightStandardizedConv2d(4, 6, 3, padding=1), (BATCH, 4, 5, 5)),
    "standardised, one position": (lambda: WeightStandardizedConv2d(2, 3, 4), (BATCH, 2, 4, 4)),
}


FREEZABLE = {n: layer for n, layer in LAYERS.items() if not n.startswith("rms")} | CONVOLUTIONS


@pytest.mark.parametrize("name", FREEZABLE)
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_weight_or_bias_has_no_use(name, frozen):
    build, shape = FREEZABLE[name]
    module = shaken(build())
    getattr(module, frozen).requires_grad_(False)
    assert KNOWN.find(module).needs_input(module) is (frozen == "bias")
    check(module, images(*shape))


@pytest.mark.parametrize("formed", [False, True])
def test_norms_behind_a_standardisation_own_up_to_what_it_removes(formed):
    """For a constant image all that a filter is given is its mean, which is taken off again."""
    module = shaken(WeightStandardizedConv2d(4, 6, 3)).float()
    x = torch.cat([torch.ones(8, 4, 5, 5), torch.randn(1, 4, 5, 5)])
    use = KNOWN.find(module).uses(module, x, torch.randn(9, 6, 3, 3))["weight"]
    if formed:
        use = replace(use, used=DirectUse(use.used.per_example()))
    assert use.squared_norm().trusted().tolist() == [*[False] * 8, True]
