"""Thresholds at the ends of the range of float32, and beyond them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpft.privacy import make_clipper
from dpft.privacy.spec import HIGHEST, LOWEST
from tests.privacy.reference import clear

STYLES = ["materialised", "lee_kifer", "ghost", "bk", "per_layer"]


class Small(nn.Module):
    """Layers of every kind of rule."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.convolution = nn.Conv2d(16, 16, (3, 1), padding=(1, 0))
        self.groups = nn.GroupNorm(4, 16)
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 20, bias=False)

    def forward(self, ids):
        h = self.norm(self.embedding(ids))
        h = self.groups(self.convolution(h.mT.unsqueeze(3))).squeeze(3).mT
        return F.cross_entropy(self.last(self.first(h).tanh()).mT, ids, reduction="none").sum(1)


@pytest.fixture(params=[False, True], ids=["denormals", "flushed to zero"])
def flushed(request):
    if not torch.set_flush_denormal(request.param):
        pytest.skip("this processor cannot")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("C", [LOWEST, HIGHEST])
@pytest.mark.parametrize("style", STYLES)
def test_one_record_moves_the_sum_by_no_more_than_its_threshold(style, C, flushed):
    torch.manual_seed(0)
    model = Small()
    exact = Small().double()
    exact.load_state_dict(model.state_dict())
    clipper = make_clipper(model, style, threshold=C * math.sqrt(6) if "layer" in style else C)
    for number, times in enumerate((1.001, 1.5, 3, 30, 1e3, 1e6)):
        ids = torch.randint(0, 20, (1, 6), generator=torch.Generator().manual_seed(number))
        gradients = torch.autograd.grad(exact(ids).sum(), list(exact.parameters()))
        norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
        clear(model)
        clipper.backward(model(ids) * (times * clipper.sensitivity / norm))
        moved = math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))
        assert moved <= clipper.sensitivity * (1 + 1e-5)
        assert moved > 0.1 * clipper.sensitivity


@pytest.mark.parametrize("C", [1e-30, 0.99 * LOWEST, 1.01 * HIGHEST, 1e30, 0.0, math.inf, math.nan])
@pytest.mark.parametrize("style", ["ghost", "bk", "per_layer_adaptive"])
def test_thresholds_beyond_them_are_refused(style, C):
    with pytest.raises(ValueError, match=r"expected 1e-12 to 1e\+12"):
        make_clipper(nn.Linear(3, 2), style, thresholds=[C])
    with pytest.raises(ValueError, match=r"expected 1e-12 to 1e\+12"):
        make_clipper(nn.Linear(3, 2), style, threshold=C)


def test_thresholds_that_adapt_cannot_be_moved_beyond_them():
    clipper = make_clipper(nn.Linear(3, 2), "flat_adaptive", threshold=1.0)
    for estimate in (1e-13, 1e13, math.nan):
        with pytest.raises(ValueError, match="clipping threshold of group 0"):
            clipper.policy.move((estimate,))
    estimates = clipper.policy.estimates
    for _ in range(20):
        estimates = clipper.policy.rule.updated(estimates, (1e3,))
        clipper.policy.move(estimates)
    assert clipper.thresholds == (LOWEST,)
