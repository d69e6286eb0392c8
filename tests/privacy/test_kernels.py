"""The kernels of norms: interpreted on a CPU, and compiled for GPUs that are not here.

Both need Triton (`pip install -c constraints.txt -e '.[kernels]'`).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs triton: pip install -c constraints.txt -e '.[kernels]'")


def test_interpreted_they_give_the_numbers_of_float64():
    """As `interpreted_kernels` says."""
    tests = Path(__file__).with_name("interpreted_kernels.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        command, cwd=tests.parents[2], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]


# As a tied model under autocast calls them: linear layers and an embedding.
CALLS = {
    "linear": (
        {"a": ("*bf16",) * 12, "g": ("*bf16",) * 12, "weights": "*fp32"},
        {"a2": 1, "g2": 1, "TOKENS": False, "COLUMNS": 64},
    ),
    "embedding": (
        {"a": ("*i64",), "g": ("*fp32",)},
        {"weights": None, "a1": 1, "a2": 1, "d": 1, "g2": 1, "TOKENS": True, "COLUMNS": 32},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("call", CALLS)
def test_compiled_they_add_up_in_float32_and_round_no_factor(
    call, architecture, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from dpft.privacy import kernels

    tensors, constants = CALLS[call]
    kernel, constants = kernels._gram_kernel, {**constants, "WIDEN": False}
    tensors = {**tensors, "sums": "*fp32", "squares": "*fp32"}
    types = {n: tensors.get(n, "constexpr" if n in constants else "i32") for n in kernel.arg_names}
    # Addresses are multiples of 16, as are rows of 768 numbers.
    round = [(i,) for i, n in enumerate(types) if re.fullmatch("[ag][01]|weights|sums|squares", n)]
    round += [(i, k) for i, type in enumerate(types.values()) for k in range(len(type)) if i < 2]
    attributes = {place: [["tt.divisibility", 16]] for place in round}
    source = ASTSource(kernel, types, constants, attributes)
    ptx = compile(source, GPUTarget("cuda", architecture, 32), {"num_warps": 4}).asm["ptx"]
    products = re.findall(r"mma\S*\.sync\.aligned\.m\d\S*", ptx)
    assert bool(products) == (call == "linear")
    assert all(".f32.bf16.bf16" in product for product in products)
    assert "tf32" not in ptx
    assert "atom" not in ptx  # sums are added up in one order
    assert "cp.async.cg" in ptx  # loaded ahead, sixteen bytes at a time
