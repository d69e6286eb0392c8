"""The kernel of noise: interpreted on a CPU, and compiled for GPUs that are not here.

Both need Triton (`pip install -c constraints.txt -e '.[kernels]'`).
"""

import importlib
import re
import sys

import pytest
import torch

from dpft.privacy import noise, normals
from dpft.privacy.noise import Slice

pytest.importorskip("triton", reason="needs triton: pip install -c constraints.txt -e '.[kernels]'")


def kernel(monkeypatch, interpreted):
    """`dpft.privacy.fused`, whose kernels Triton interprets, or compiles."""
    monkeypatch.setenv("TRITON_INTERPRET", str(int(interpreted)))
    monkeypatch.delitem(sys.modules, "dpft.privacy.fused", raising=False)
    return importlib.import_module("dpft.privacy.fused")


def test_its_numbers_are_the_known_ones(monkeypatch):
    drawn = torch.zeros(2048, dtype=torch.float64)
    kernel(monkeypatch, True).noisy_means_([Slice(drawn, bytes(32), 1.0)], 1.0)
    assert torch.equal(drawn, normals.normals(bytes(32), 0, 2048))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_each_slice_of_one_launch_gets_the_bits_of_the_cpu(monkeypatch, dtype):
    places = [(0, 1), (1023, 2), (700, 500), ((1 << 35) - 1030, 1030), (5, 0), (0, 1024)]

    def slices():
        for number, (first, count) in enumerate(places):
            sums = torch.linspace(-1, 1, count).to(dtype)
            yield Slice(sums, bytes(range(number, 32 + number)), 0.7 + number, first)

    found, expected = [*slices()], [*slices()]
    kernel(monkeypatch, True).noisy_means_(found, 1 / 3)
    noise.on_cpu(expected, 1 / 3)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.sums, other.sums)


def test_it_does_not_begin_a_keystream_again(monkeypatch):
    slices = [Slice(torch.zeros(2), bytes(32), 1.0, (1 << 35) - 1)]
    with pytest.raises(ValueError, match="keystream"):
        kernel(monkeypatch, True).noisy_means_(slices, 1.0)


@pytest.mark.parametrize("architecture", [80, 90])
def test_compiled_it_rounds_every_operation_and_keeps_no_key(monkeypatch, tmp_path, architecture):
    """PTX's mul.rn and add.rn may not be contracted; div.rn and sqrt.rn are IEEE's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    fused = kernel(monkeypatch, False)
    types = dict.fromkeys(fused._kernel.arg_names, "i32")
    types |= {"table": "*i64", "scale": "i64", "DOUBLE": "constexpr"}
    options = {"num_warps": fused._WARPS, "enable_fp_fusion": False}
    made = compile(
        ASTSource(fused._kernel, types, {"DOUBLE": False}),
        GPUTarget("cuda", architecture, 32),
        options,
    )
    ptx = made.asm["ptx"]
    used = set(re.findall(r"\b((?:add|sub|mul|div|sqrt|fma|mad)\.[a-z.]*f64)\b", ptx))
    assert used == {f"{name}.rn.f64" for name in ("add", "sub", "mul", "div", "sqrt")}
    assert not re.search(
        r"\.(?:f32|ftz|approx)\b", ptx.replace("cvt.f64.f32", "").replace("cvt.rn.f32.f64", "")
    )
