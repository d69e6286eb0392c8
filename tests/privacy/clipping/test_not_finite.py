"""A record that is not finite adds nothing, for ever: it ends no run and hides no wrong rule."""

import math

import pytest
import torch
from torch import nn

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.anymodule.recomputation import close
from tests.covering import covering
from tests.privacy.reference import clear, grads_of, loop_of

THRESHOLD = 0.1


class Model(nn.Module):
    """Layers of several kinds, of which one has no rule."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))) * self.scale)


def losses_of(model, x, rows, poison, bad):
    """One loss for each record of ``rows`` rows; record ``bad`` is spoilt in one of three ways."""
    if poison == "input" and bad is not None:
        x = x.clone()
        x[bad * rows] = math.inf
    losses = model(x).square().sum((1, 2)).view(-1, rows).sum(1)
    if poison == "loss" and bad is not None:
        losses = losses * torch.ones_like(losses).index_fill(0, torch.tensor([bad]), math.nan)
    if poison == "gradient" and bad is not None:  # the square root of zero has no slope
        spoilt = torch.arange(len(losses)) == bad
        losses = losses + (losses - losses.detach() + ~spoilt).sqrt() * spoilt
    return losses


# Backwards enough that the checks of the rules come back, and that they do so twice.
MANY, MORE = 66, 200
PLANS = {
    "bk": "bk",
    "ghost": "ghost",
    "fused": "per_layer",
    "materialised": "materialised",
    "lee_kifer": "lee_kifer",
}
CASES = [
    *covering(tuple(PLANS), ("input", "gradient", "loss"), (1, 2), (1, 3)),
    ("fused adaptive", "loss", 2, 1),
]


@pytest.mark.parametrize(("plan", "poison", "rows", "times"), CASES)
def test_one_record_in_every_batch_changes_nothing_of_the_others(plan, poison, rows, times):
    torch.manual_seed(0)
    plan, _, adaptive = plan.partition(" ")
    style = PLANS[plan] + f"_{adaptive}" * bool(adaptive)
    model, bad, good = Model().double(), 1, [0, 2, 3]
    x = torch.randn(4 * rows, 2, 5, dtype=torch.float64)
    others = torch.cat([x[i * rows : (i + 1) * rows] for i in good])
    clipper = make_clipper(model, style, threshold=THRESHOLD, plan=plan)
    norms, total = loop_of(
        model, clipper, lambda i: losses_of(model, others, rows, poison, None)[i], len(good)
    )
    last = (MORE if (plan, poison) == ("bk", "input") else MANY) - 1
    for number in range(last + 1):
        clear(model)
        for _ in range(times if number in (0, last) else 1):
            clipper.backward(losses_of(model, x, rows, poison, bad), rows=rows)
        if number in (0, last):
            assert not clipper.factors[bad].any()
            torch.testing.assert_close(clipper.norms[good], norms, rtol=1e-10, atol=1e-12)
            for name, grad in grads_of(model).items():
                torch.testing.assert_close(grad, times * total[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("plan", "poison"), covering(tuple(PLANS), ("input", "gradient")))
def test_batches_of_which_no_record_is_finite_add_zero_for_ever(plan, poison):
    model, x = Model().double(), torch.randn(1, 2, 5, dtype=torch.float64)
    clipper = make_clipper(model, PLANS[plan], threshold=THRESHOLD)
    for _ in range(MANY):
        clipper.backward(losses_of(model, x, 1, poison, 0))
    assert not clipper.factors.any()
    assert not any(grad.any() for grad in grads_of(model).values())


@pytest.mark.parametrize(
    ("style", "rows", "poison"),
    [("bk", 1, "input"), ("ghost", 2, "input"), ("per_layer", 1, "gradient"), ("bk", 1, "loss")],
)
def test_a_record_that_is_not_finite_in_every_batch_hides_no_wrong_rule(style, rows, poison):
    """Where autograd's gradients are not finite, layers are compared on the finite rows."""
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
        torch.randn(4 * rows, 2, 5),
    )
    # One layer becomes another than its type says.
    model[0].register_forward_hook(lambda module, inputs, output: 3 * output)
    clipper = make_clipper(model, style, threshold=THRESHOLD)
    with pytest.raises(UnsupportedLayerError, match=r"rule for parameter '0\.(weight|bias)'"):
        clipper.backward(losses_of(model, x, rows, poison, 1), rows=rows)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("half", [False, True])
def test_an_infinite_record_in_every_batch_switches_no_check_off_and_accuses_no_rule(half):
    """Rules are as rarely looked at as without that record, since its company was enough."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    x = torch.randn(4, 2, 5)
    clipper = make_clipper(model, "bk", threshold=THRESHOLD)
    due = []
    for number in range(80):
        if clipper.to_check(4) is not None:
            due.append(number)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses = losses_of(model, x, 1, "input", 1).float()
        clipper.backward(losses)
    assert due == [0, 63]


def test_hooks_that_come_after_the_clippers_are_no_part_of_a_layer():
    model, x = Model(), torch.randn(4, 2, 5)
    clipper = make_clipper(model, "bk", threshold=THRESHOLD)
    model.first.register_forward_hook(lambda module, inputs, output: 3 * output)
    clipper.backward(losses_of(model, x, 1, "input", 1))
    assert not clipper.factors[1].any()
    assert clipper.factors[[0, 2, 3]].all()


def test_outputs_are_compared_where_they_are_finite():
    """One record that is not would have shown that the others are what they should be."""
    whole = torch.tensor([[1.0, 2.0], [math.nan, math.inf]])
    assert close(whole.clone(), whole)
    assert not close(whole + torch.tensor([[1.0], [0.0]]), whole)
    assert not close(whole.fill_diagonal_(math.nan), torch.ones(2, 2))
