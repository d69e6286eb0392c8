"""A record that is not finite adds nothing, for ever: it ends no run and hides no wrong rule."""

import math

import pytest
import torch
from torch import nn

from dpft.privacy import make_clipper
from tests.covering import covering
from tests.privacy.reference import clear, grads_of, reference_clip_groups

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


# Backwards enough that the rules are checked again, and that they are checked more rarely.
MANY, MORE = 3, 70
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
    thresholds = clipper.thresholds
    with clipper.paused():
        norms, total = reference_clip_groups(
            model,
            lambda i: losses_of(model, others, rows, poison, None)[i],
            len(good),
            [group.parameters for group in clipper.groups],
            lambda k, n: min(1.0, thresholds[k] / n),
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
