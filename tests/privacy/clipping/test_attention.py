"""Attention by torch's fused function and by plain products: exact sums, padded on either side."""

import pytest
import torch

from dpft.privacy.clipping.calls import uses_between
from dpft.privacy.spec import TWO_BACKWARDS
from tests.covering import covering
from tests.privacy.architectures import in_double
from tests.privacy.reference import equals_loop
from tests.privacy.small_models import build

PLANS = ("bk", "materialised", "ghost", "lee_kifer", "per_layer")


def padded_left(data):
    """Each record's tokens moved to the end of its row."""
    shift = (data["attention_mask"] == 0).sum(1)
    columns = torch.arange(data["input_ids"].shape[1])
    index = (columns - shift[:, None]) % len(columns)
    return {name: tensor.gather(1, index) for name, tensor in data.items()}


def functions(losses):
    root = torch.autograd.graph.get_gradient_edge(losses)
    return {node.name() for node in uses_between([root], (), {}).nodes}


@pytest.mark.parametrize(
    ("name", "attention", "side", "style"),
    covering(("gpt2", "llama", "roberta_mlm"), ("sdpa", "eager"), ("right", "left"), PLANS),
)
def test_either_attention_equals_the_autograd_loop(name, attention, side, style):
    """Records of the loop are alone: if they depended on each other, sums would differ."""
    case = build(name)
    case.model.set_attn_implementation(attention)
    if side == "left":
        case.data = padded_left(case.data)
    with in_double():  # Llama's plain attention has its softmax in float32
        fused = any("ScaledDotProduct" in f for f in functions(case.all_losses()))
        assert fused == (attention == "sdpa")
        equals_loop(case.model, case.losses_of, case.batch, style)


def test_the_fused_function_is_exact_in_float32():
    case = build("gpt2")
    case.model.float().set_attn_implementation("sdpa")
    assert "ScaledDotProductFlashAttentionForCpuBackward0" in functions(case.all_losses())
    for style in ("bk", *TWO_BACKWARDS):
        equals_loop(case.model, case.losses_of, case.batch, style, tolerance=1e-5).close()
