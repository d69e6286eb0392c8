"""One look at the norms at the end of a microbatch, where the host waits for a device."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpft.privacy import LostRecordError, make_clipper
from dpft.privacy.clipping import clipper as clippers
from dpft.privacy.clipping.rules import SquaredNorm
from dpft.privacy.clipping.rules.interface import batched_gram
from dpft.privacy.clipping.rules.uses import uncancelled
from tests.privacy.reference import clear, grads_of


def clip_with(style, x, monkeypatch, careful):
    """The sums of a batch; with a device, as a loop has them that begins again where it must."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    monkeypatch.setattr(clippers, "waits", lambda device: not careful)
    clipper = make_clipper(model, style, threshold=0.1)
    clipper.backward(
        F.cross_entropy(model(torch.ones(2, 5)), torch.tensor([0, 1]), reduction="none")
    )
    lost = 0
    while True:
        clear(model)
        losses = F.cross_entropy(model(x), torch.arange(len(x)) % 3, reduction="none")
        try:
            clipper.backward(losses)
        except LostRecordError:
            lost += 1
            clipper.reset()
            continue
        return grads_of(model), clipper.factors, lost


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("style", ["bk", "materialised", "ghost", "lee_kifer", "per_layer"])
def test_one_look_at_the_end_leaves_the_same_sums(style, bad, monkeypatch):
    """A record that is not finite is found before anything is released, and dropped then."""
    x = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    if bad:
        x[2, 3] = torch.inf
    expected, factors, _ = clip_with(style, x, monkeypatch, careful=True)
    found, others, lost = clip_with(style, x, monkeypatch, careful=False)
    assert lost == (bad and style not in ("bk", "materialised"))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(others, factors, rtol=1e-5, atol=0)
    assert all(g.isfinite().all() for g in found.values())


@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("length", [60, 400])
def test_a_norm_that_cancels_is_never_understated_without_a_look(noise, length):
    """Positions that cancel to less than float32 can represent."""
    generator = torch.Generator().manual_seed(length)
    a = torch.randn(16, length // 2, 40, generator=generator).repeat_interleave(2, 1)
    a = a * (1 + noise * torch.randn(a.shape, generator=generator))
    g = torch.randn(16, length // 2, 30, generator=generator).repeat_interleave(2, 1)
    g[:, ::2] *= -1.0
    gram_a, gram_g = batched_gram(a), batched_gram(g)
    scale = uncancelled(gram_a, gram_g)
    norm = SquaredNorm((gram_a * gram_g).sum((1, 2)), scale).certain()
    true = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    assert (norm.value >= true * (1 - 1e-5)).all()
    assert (norm.value <= 1.01 * true + 1e-5 * scale).all()
