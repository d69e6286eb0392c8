"""Attention by torch's fused function and by plain products: exact sums, padded on either side."""

import pytest
import torch

from dpft.privacy import make_clipper
from dpft.privacy.clipping.graph import uses_between
from dpft.privacy.spec import TWO_BACKWARDS
from tests.privacy.architectures import in_double
from tests.privacy.reference import clear, clip_records, record_gradients, same_grads
from tests.privacy.small_models import build

PLANS = ("bk", "flat", "ghost", "lee_kifer", "per_layer")


def padded_left(data):
    """Each record's tokens moved to the end of its row."""
    shift = (data["attention_mask"] == 0).sum(1)
    columns = torch.arange(data["input_ids"].shape[1])
    index = (columns - shift[:, None]) % len(columns)
    return {name: tensor.gather(1, index) for name, tensor in data.items()}


def functions(losses):
    root = torch.autograd.graph.get_gradient_edge(losses)
    return {node.name() for node in uses_between([root], (), {}).nodes}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "roberta_mlm"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_either_attention_equals_the_autograd_loop(name, attention, side):
    """Records of the loop are alone: if they depended on each other, sums would differ."""
    case = build(name)
    case.model.set_attn_implementation(attention)
    if side == "left":
        case.data = padded_left(case.data)
    with in_double():  # Llama's plain attention has its softmax in float32
        fused = any("ScaledDotProduct" in f for f in functions(case.all_losses()))
        assert fused == (attention == "sdpa")
        records = record_gradients(case.model, case.record_loss, case.batch)
        for style in PLANS:
            clipper = make_clipper(case.model, style, threshold=1.0)
            parts = [group.parameters for group in clipper.groups]
            limits = clipper.thresholds
            norms, total = clip_records(records, parts, lambda k, n, c=limits: min(1.0, c[k] / n))
            clear(case.model)
            clipper.backward(case.all_losses())
            torch.testing.assert_close(clipper.norms, norms, rtol=1e-10, atol=1e-10)
            same_grads(case.model, total, 1e-10)
            clipper.close()


def test_the_fused_function_is_exact_in_float32():
    case = build("gpt2")
    case.model.float().set_attn_implementation("sdpa")
    assert "ScaledDotProductFlashAttentionForCpuBackward0" in functions(case.all_losses())
    records = record_gradients(case.model, case.record_loss, case.batch)
    names = [list(records[0])]
    _, total = clip_records(records, names, lambda k, n: min(1.0, 1.0 / n))
    for style in ("bk", *TWO_BACKWARDS):
        clipper = make_clipper(case.model, style, threshold=1.0)
        clear(case.model)
        clipper.backward(case.all_losses())
        same_grads(case.model, total, 1e-5)
        clipper.close()
