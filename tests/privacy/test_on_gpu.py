"""Norms, sums and noise where there is a GPU; docs/explanation/testing.md has what was seen."""

import pytest
import torch

from dpft.privacy import noise
from dpft.privacy.noise import Slice
from dpft.privacy.precision import norm_kernels
from tests.privacy.clipping.test_styles import CASES, equal_the_loop
from tests.privacy.reference import record_gradients
from tests.privacy.small_models import build

GPU = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    "combination",
    [case for case in CASES if "program" not in case[5]],
    ids=lambda values: "-".join(map(str, values)),
)
def test_sums_and_norms_equal_the_autograd_loop(combination):
    name, tied, *clipping = combination
    case = build(name, tied)
    case.model.to(GPU)
    case.data = {key: tensor.to(GPU) for key, tensor in case.data.items()}
    with torch.device(GPU):  # losses make positions of their own
        records = record_gradients(case.model, case.record_loss, case.batch)
        equal_the_loop(case, records, *clipping)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_bits_of_the_cpu(dtype):
    places = [(0, 2_000_000), (1023, 2), (700, 150_000), ((1 << 35) - 1030, 1030)]
    whole = [torch.linspace(-1, 1, count).to(dtype) for _, count in places]

    def noisy(device, add):
        sums = [x.to(device, copy=True) for x in whole]
        keys = [bytes(range(n, 32 + n)) for n in range(len(sums))]
        pairs = zip(sums, keys, places, strict=True)
        add([Slice(x, key, 0.7, first) for x, key, (first, _) in pairs], 1 / 3)
        return [x.cpu() for x in sums]

    kernel = noise._kernel(torch.device(GPU, 0), dtype)
    assert kernel is not None
    found, expected = noisy(GPU, kernel), noisy("cpu", noise.on_cpu)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("width", [2304, 50257])
def test_norms_by_the_kernel_are_those_of_float64(width):
    """The sums of a layer, also when they are replayed from a CUDA graph."""
    a, g = (torch.randn(4, 100, n, device=GPU, dtype=torch.bfloat16) for n in (768, width))
    kernels = norm_kernels(a, g)
    assert kernels is not None
    found = kernels.gram_sums(a, g)
    expected = torch.stack(
        [(y.double().T @ x.double()).square().sum() for x, y in zip(a, g, strict=True)]
    )
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernels.gram_sums(a, g)
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(captured, found, strict=True))
