"""One batch through a plan: every group by its own factor, and no sum beyond what norms bound."""

import pytest
import torch
from torch import nn

from dpft.privacy import make_clipper
from dpft.privacy.clipping import clipper as clippers
from tests.privacy.reference import clear, grads_of


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer", "lee_kifer"])
def test_a_record_that_cancels_moves_the_sum_by_no_more_than_its_threshold(
    style, bias, waits, monkeypatch
):
    """Its gradient is zero, exactly: huge terms that come in pairs. The sum of a batch adds them
    one after the other, and would lose what the records before it had added. Also with a bias,
    whose norm is exact, and on a device for which the host waits and does not look."""
    monkeypatch.setattr(clippers, "waits", lambda device: waits)
    threshold, others, width = 1e-3, 19, 64
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(-3, 4, (2, 2, width), generator=generator).float()
    x = torch.randn(1, 4, width, generator=generator).repeat(others, 1, 1)
    weights = torch.randn(1, 4, width, generator=generator).repeat(others, 1, 1)
    x = torch.cat([x, 2.0**20 * torch.cat([whole[0], whole[0]])[None]])
    weights = torch.cat([weights, torch.cat([whole[1], -whole[1]])[None]])
    model = nn.Linear(width, width, bias=bias)
    clipper = make_clipper(model, style, threshold=threshold)

    def total(count):
        clear(model)
        clipper.backward((model(x[:count]) * weights[:count]).sum((1, 2)))
        return torch.cat([grad.double().flatten() for grad in grads_of(model).values()])

    without = total(others)
    assert without.norm().item() == pytest.approx(others * threshold, rel=1e-3)
    assert (total(others + 1) - without).norm() <= threshold


def test_a_norm_is_no_smaller_than_what_rounding_leaves_of_its_terms():
    model = nn.Linear(8, 8, bias=False)
    clipper = make_clipper(model, "bk", threshold=1.0)
    x, weights = torch.ones(2, 2, 8), torch.ones(2, 2, 8)
    weights[0, 1] = -1  # cancels
    clipper.backward((model(x) * weights).sum((1, 2)))
    terms = 2 * 8.0  # |a_t| |g_t|, twice
    eps = torch.finfo(torch.float32).eps
    assert clipper.norms[0].item() == pytest.approx(8 * eps * terms, rel=1e-6)
    assert clipper.norms[1].item() == pytest.approx(terms, rel=1e-6)


@pytest.mark.parametrize(("plan", "at_once"), [("fused", True), ("bk", False)])
def test_a_fused_group_is_summed_inside_the_backward(plan, at_once):
    """Which is what frees its output gradients: the last layer is done before the first begins."""
    model, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), torch.randn(6, 2, 5)
    clipper = make_clipper(model, "per_layer", threshold=0.1, plan=plan)
    clipper.backward(model(x).square().sum((1, 2)))  # with the check against autograd
    clear(model)
    first, seen = model[0](x), []
    first.register_hook(lambda g: seen.append(model[2].weight.grad is not None))
    clipper.backward(model[2](model[1](first)).square().sum((1, 2)))
    assert seen == [at_once]
