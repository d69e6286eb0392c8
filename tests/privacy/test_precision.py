"""Norms and sums are computed in full float32, whatever the process allows for speed."""

import pytest
import torch
from torch import nn

from dpft.privacy import make_clipper, precision
from dpft.privacy.clipping.rules.interface import batched_gram
from dpft.privacy.precision import full_precision
from dpft.privacy.verification.checker import Guard
from tests.privacy.reference import clear

b = torch.backends
# Each switch, and what rounds the factors of its products.
SWITCHES = [
    (b.cuda.matmul, "tf32"),
    (b.cudnn.conv, "tf32"),
    (b.mkldnn.matmul, "bf16"),
    (b.mkldnn.matmul, "tf32"),
    (b.mkldnn.conv, "bf16"),
    (b.mkldnn.conv, "tf32"),
]
NAMES = ["cuda-tf32", "cudnn-tf32", "mkldnn-bf16", "mkldnn-tf32", "conv-bf16", "conv-tf32"]


@pytest.fixture(params=SWITCHES, ids=NAMES)
def rounded(request):
    """A backend that may round; as it was afterwards."""
    backend, to = request.param
    before = backend.fp32_precision
    backend.fp32_precision = to
    yield backend
    backend.fp32_precision = before


def test_nothing_is_rounded_within_and_the_choice_is_the_callers_again_after(rounded):
    chosen = rounded.fp32_precision
    with full_precision():
        assert rounded.fp32_precision == "ieee"
        with full_precision():
            assert rounded.fp32_precision == "ieee"
        assert rounded.fp32_precision == "ieee"
    assert rounded.fp32_precision == chosen
    with pytest.raises(KeyError), full_precision():
        raise KeyError
    assert rounded.fp32_precision == chosen


@pytest.mark.parametrize("style", ["materialised", "bk", "per_layer", "ghost", "lee_kifer"])
def test_every_product_of_norms_and_sums_is_formed_in_full_precision(style, monkeypatch):
    """Of the rules', and of autograd where that forms the sums."""
    used = set()
    for name in ("bmm", "mm", "addmm", "mv"):
        product = getattr(torch, name)

        def observed(*args, product=product, **kwargs):
            used.add(b.mkldnn.matmul.fp32_precision)
            return product(*args, **kwargs)

        monkeypatch.setattr(torch, name, observed)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), torch.randn(3, 2, 6)
    clipper = make_clipper(model, style, threshold=0.1)
    # The hooks of this test look on and change nothing.
    monkeypatch.setattr(Guard, "check_hooks", lambda self: None)
    clipper.backward(model(x).square().sum((1, 2)))  # with the check against autograd
    used.clear()
    clear(model)
    summed = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p: summed.append(b.mkldnn.matmul.fp32_precision)
        )
    before = b.mkldnn.matmul.fp32_precision
    b.mkldnn.matmul.fp32_precision = "bf16"
    try:
        clipper.backward(model(x).square().sum((1, 2)))
        assert b.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        b.mkldnn.matmul.fp32_precision = before
    assert used == {"ieee"}
    assert set(summed) <= {"ieee"}
    assert bool(summed) is (style in ("ghost", "lee_kifer"))


def test_products_of_bfloat16_lose_no_more_than_float32_does():
    """Where nearly everything cancels."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 64, 96, generator=generator).bfloat16() for _ in range(2))
    x = torch.cat([x, x], 2)
    y = torch.cat([y, -y + 2.0**-9 * (y.abs() > 1)], 2)
    exact = x.double() @ y.double().mT
    allowed = 2.0**-24 * 192 * (x.double().abs() @ y.double().abs().mT)
    assert (exact.abs() < 1e-2 * (x.double().abs() @ y.double().abs().mT)).all()
    out = torch.zeros(64, 64)
    with full_precision():
        found = precision.bmm(x, y.mT)
        assert ((precision.mm(x[0], y[0].mT) - exact[0]).abs() <= allowed[0]).all()
        precision.addmm_(out, x[1], y[1].mT)
        gram = batched_gram(x)
    assert ((found - exact).abs() <= allowed).all()
    assert ((out - exact[1]).abs() <= allowed[1]).all()
    lengths = x.double().abs() @ x.double().abs().mT
    assert ((gram - x.double() @ x.double().mT).abs() <= 2.0**-24 * 192 * lengths).all()
