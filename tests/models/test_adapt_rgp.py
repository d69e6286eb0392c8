"""RGP: the value unchanged, the gradient projected, the right weights moved and resumed."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dpft.config.adapt import Adapt
from dpft.models.rgp import CarriedLinear
from dpft.privacy import make_clipper
from dpft.training.optim import make_optimizer
from tests.models.adapted import adapted, trained
from tests.privacy.small_models import build
from tests.training.test_loop import OPTIM
from tests.training.test_loop import run as steps_of

MODELS = [("gpt2", True), ("gpt2", False), ("llama", True), ("roberta_classifier", False),
          ("roberta_mlm", True), ("vit", False)]  # fmt: skip


def layer(kind, p=5, d=7, rank=2, follow="update"):
    torch.manual_seed(0)
    base = Conv1D(p, d) if kind == "conv1d" else nn.Linear(d, p)
    carried = CarriedLinear(base.double(), rank, follow)
    with torch.no_grad():  # an update to follow
        base.weight.add_(0.1 * torch.randn_like(base.weight))
    carried.begin("name", 0, 3)
    return carried


@pytest.mark.parametrize(("model", "tied"), MODELS)
def test_the_value_is_that_of_the_model(model, tied):
    plain = build(model, tied).all_losses()
    case, loaded = adapted(model, "rgp", tied)
    loaded.reparametrisation.begin(5)
    assert torch.equal(case.all_losses(), plain)
    with torch.no_grad():
        assert torch.equal(case.all_losses(), plain)


def test_one_power_iteration_follows_the_largest_direction():
    """Of a matrix of rank one nothing is left over; the update is found, not the weight."""
    torch.manual_seed(0)
    base = nn.Linear(7, 5, dtype=torch.float64)
    carried = CarriedLinear(base, 1, "update")
    u, v = torch.randn(5).double(), torch.randn(7).double()
    with torch.no_grad():
        base.weight.add_(torch.outer(u, v))
    carried.begin("name", 0, 1)
    L, R = carried.left.weight[:, 0], carried.right.weight[0]
    assert abs(L @ u / u.norm()).item() == pytest.approx(1.0)
    assert abs(R @ v / v.norm()).item() == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_gradients_of_carriers_and_inputs_are_those_of_the_written_out_product(kind):
    """Against autograd on ``x (W_res + L R)^T`` itself, ``W_res`` a constant."""
    carried = layer(kind)
    x = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True)
    out = carried(x)
    g = torch.randn_like(out)
    mine = torch.autograd.grad(out, [x, carried.left.weight, carried.right.weight], g)
    L, R = (
        p.detach().clone().requires_grad_() for p in (carried.left.weight, carried.right.weight)
    )
    W_res = (carried.weight - L @ R).detach()
    product = x @ (W_res + L @ R).T + carried.base_layer.bias
    torch.testing.assert_close(out, product)
    for ours, theirs in zip(mine, torch.autograd.grad(product, [x, L, R], g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_transfer_projects_the_gradient_onto_the_carriers_spaces(kind):
    """Brute force: from the full gradient ``G``, ``G - (I - L L^T) G (I - R^T R)``."""
    carried = layer(kind)
    x = torch.randn(4, 7, dtype=torch.float64)
    g = torch.randn(4, 5, dtype=torch.float64)
    carried(x).backward(g)
    carried.transfer()
    L, R = carried.left.weight, carried.right.weight
    G = g.T @ x
    left_over = (torch.eye(5).double() - L @ L.T) @ G @ (torch.eye(7).double() - R.T @ R)
    found = carried.base_layer.weight.grad
    found = found.T if kind == "conv1d" else found
    torch.testing.assert_close(found, G - left_over, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("model", "tied"), MODELS)
def test_the_matrices_of_the_blocks_and_a_new_head_move(model, tied):
    plain = build(model, tied).model
    blocks = (".h.", ".layer.", ".layers.")
    matrices = {
        name
        for name, p in plain.named_parameters()
        if p.dim() == 2 and any(part in name for part in blocks)
    }
    head = {n for n, p in plain.named_parameters() if n.startswith("classifier.")}
    case, loaded = adapted(model, "rgp", tied)
    assert set(loaded.reparametrisation.moved()) == matrices | head
    carriers = {n for n in trained(case.model) if n.endswith((".left.weight", ".right.weight"))}
    assert trained(case.model) == carriers | head
    assert len(carriers) == 2 * len(matrices)
    assert not any("bias" in name for name in matrices)


def run(steps, start=0, weights=None, state=None, log=None):
    """Private steps from the pretrained weights, or on from a checkpoint."""
    case, loaded = adapted("gpt2", "rgp")
    moved = loaded.reparametrisation.moved()
    if weights is not None:
        with torch.no_grad():
            for name, p in moved.items():
                p.copy_(weights[name])
    optimizer = make_optimizer(OPTIM, iter(moved.values()))
    if state is not None:
        optimizer.load_state_dict(state)

    def after_step(step, statistics):
        if log is not None:
            log.append({n: p.detach().clone() for n, p in case.model.named_parameters()})

    steps_of(
        steps=steps,
        start=start,
        model=case.model,
        optimizer=optimizer,
        reparametrisation=loaded.reparametrisation,
        after_step=after_step,
    )
    return {n: p.detach().clone() for n, p in moved.items()}, optimizer.state_dict()


def test_a_step_of_sgd_moves_along_the_projection_of_the_clipped_sum():
    """One step without noise, against per-record autograd of the written-out product."""
    from tests.privacy.reference import reference_clip

    case, loaded = adapted("gpt2", "rgp", settings=Adapt("rgp", rank=3, follow="weight"))
    loaded.reparametrisation.begin(0)
    clipper = make_clipper(case.model, "bk", threshold=0.05)
    _, sums = reference_clip(
        case.model, case.record_loss, case.batch, lambda n: (0.05 / n).clamp(max=1)
    )
    clipper.reset()
    clipper.backward(case.all_losses())
    loaded.reparametrisation.transfer()
    clipper.close()
    for name, m in case.model.named_modules():
        if isinstance(m, CarriedLinear):
            L, R = m.left.weight, m.right.weight
            dL, dR = sums[f"{name}.left.weight"], sums[f"{name}.right.weight"]
            dW = dL @ R + L @ dR - L @ L.T @ dL @ R
            torch.testing.assert_close(m.base_layer.weight.grad, dW.T, rtol=1e-9, atol=1e-12)
