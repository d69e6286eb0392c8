"""Norms, sums and noise where there is a GPU; docs/explanation/testing.md has what was seen."""

import pytest
import torch

from dpft.privacy import noise
from tests.privacy.clipping.test_styles import CASES, equal_the_loop
from tests.privacy.reference import record_gradients
from tests.privacy.small_models import build

GPU = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("combination", CASES, ids=lambda values: "-".join(map(str, values)))
def test_sums_and_norms_equal_the_autograd_loop(combination):
    """In float64 to 1e-10, as on the CPU."""
    name, tied, *clipping = combination
    case = build(name, tied)
    case.model.to(GPU)
    case.data = {key: tensor.to(GPU) for key, tensor in case.data.items()}
    with torch.device(GPU):  # losses make positions of their own
        records = record_gradients(case.model, case.record_loss, case.batch)
        equal_the_loop(case, records, *clipping)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("first", "count"), [(0, 2_000_000), (1023, 2), (700, 150_000), ((1 << 35) - 1030, 1030)]
)
def test_noise_has_the_bits_of_the_cpu(dtype, first, count):
    """By the one kernel, and by torch's operations."""
    key = bytes(range(32))
    expected = torch.linspace(-1, 1, count).to(dtype)
    fused, tiled = expected.to(GPU), expected.to(GPU)
    noise.noisy_mean_(expected, key, 0.7, 3, first)
    noise.noisy_mean_(fused, key, 0.7, 3, first)
    noise._in_tiles(tiled, key, 0.7, 1 / 3, first)
    assert torch.equal(fused.cpu(), expected)
    assert torch.equal(tiled.cpu(), expected)
    assert noise._kernel(fused.device, dtype) is not None
