"""Clipped sums and norms equal one autograd backward per record, in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from dpft.privacy import UnsupportedLayerError, make_clipper
from tests.privacy import small_models
from tests.privacy.reference import clear, equals_loop, grads_of, same_grads

PRIVATE_STYLES = ["materialised", "ghost", "bk"]
TOLERANCE = 1e-10


def gpt2(dropout=0.0):
    torch.manual_seed(0)
    return small_models.gpt2(True, dropout).model


@pytest.mark.parametrize("style", PRIVATE_STYLES)
def test_an_empty_batch_and_padding_alone_add_nothing_and_leave_gradients_in_place(style):
    case = small_models.build("gpt2")
    clipper = make_clipper(case.model, style, threshold=1.0)
    for losses, real in (
        (torch.zeros(0, dtype=torch.float64, requires_grad=True), None),
        (case.all_losses(), torch.zeros(4, dtype=torch.bool)),
    ):
        clipper.backward(losses, weights=real)
        assert clipper.norms.shape == (0, 1)
        assert all(not p.grad.any() for p in clipper.parameters.values())


@pytest.mark.parametrize("style", PRIVATE_STYLES)
def test_dropout_masks_of_the_forward_are_those_of_the_norms(style):
    """With dropout the reference must use the same masks: one forward, B backwards."""
    case = small_models.gpt2(True, dropout=0.3)
    torch.manual_seed(5)
    losses, parameters = case.all_losses(), dict(case.model.named_parameters())
    norms, total = torch.zeros(4).double(), {n: torch.zeros_like(p) for n, p in parameters.items()}
    for i in range(4):
        grads = torch.autograd.grad(losses[i], list(parameters.values()), retain_graph=True)
        norms[i] = torch.sqrt(sum(g.square().sum() for g in grads))
        for name, g in zip(parameters, grads, strict=True):
            total[name] += min(1.0, 1.0 / norms[i].item()) * g
    clipper = make_clipper(case.model, style, threshold=1.0)
    torch.manual_seed(5)
    clipper.backward(case.all_losses())
    torch.testing.assert_close(clipper.norms[:, 0], norms, rtol=TOLERANCE, atol=TOLERANCE)
    same_grads(case.model, total, TOLERANCE)


class Mixed(nn.Module):
    """Every layer kind, frozen parts, a layer called twice, extra dimensions, a padding index."""

    def __init__(self, d, vocab=11, frozen=False):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d, padding_idx=0)
        self.second = nn.Embedding(vocab, d)
        self.twice = nn.Linear(d, d)
        self.conv1d = Conv1D(d + 1, d)
        self.norm = nn.LayerNorm(d + 1)
        self.no_scale = nn.LayerNorm(d + 1, elementwise_affine=False)
        self.head = nn.Linear(d + 1, vocab, bias=False)
        self.pooled = nn.Linear(d + 1, 3)
        self.unused = nn.Linear(2, 2)
        if frozen:
            self.conv1d.weight.requires_grad_(False)
            self.twice.bias.requires_grad_(False)
            self.norm.bias.requires_grad_(False)
            self.second.weight.requires_grad_(False)

    def forward(self, ids):
        x = self.embedding(ids) + self.second(ids.flip(1))
        x = torch.tanh(self.twice(x))
        x = x + torch.tanh(self.twice(x.unsqueeze(2)).squeeze(2))
        x = self.norm(self.conv1d(x))
        logits = self.head(self.no_scale(x) + x)
        pooled = self.pooled(x.mean(1))
        return logits.logsumexp(-1).mean(1) - logits[..., 1].mean(1) + pooled.square().sum(1)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 5),
    length=st.integers(1, 9),
    d=st.integers(1, 7),
    frozen=st.booleans(),
    style=st.sampled_from(PRIVATE_STYLES),
    seed=st.integers(0, 1000),
)
def test_any_shape_of_a_mixed_model(batch, length, d, frozen, style, seed):
    torch.manual_seed(seed)
    model = Mixed(d, frozen=frozen).double()
    ids = torch.randint(0, 11, (batch, length))
    equals_loop(model, lambda rows: model(ids[rows]), batch, style)


class Tied(small_models.Parts):
    def forward(self, ids):
        x = self.a(ids) + self.b(ids.flip(1)).tanh()
        x = x + self.down(self.up(x).tanh())
        return self.head(x).logsumexp(-1).mean(1)


@pytest.mark.parametrize("style", PRIVATE_STYLES)
def test_tying_linear_layers_to_each_other_and_to_two_embeddings(style):
    torch.manual_seed(0)
    layers = {name: nn.Embedding(7, 4) for name in "ab"}
    layers |= {name: nn.Linear(4, 7, bias=False) for name in ("up", "head")}
    layers["down"] = Conv1D(4, 7)  # of (d, p) storage: same shape here
    for layer in layers.values():
        layer.weight = layers["a"].weight
    model = Tied(**layers).double()
    assert len(list(model.parameters())) == 2
    ids = torch.randint(0, 7, (3, 5))
    equals_loop(model, lambda rows: model(ids[rows]), 3, style)


def test_non_private_style_is_an_ordinary_backward():
    case = small_models.build("gpt2")
    model = case.model
    clipper = make_clipper(model, "none")
    clipper.backward(case.all_losses(), weights=torch.tensor([0.5, 1, 1, 0]))  # the last is padding
    got = grads_of(model)
    assert clipper.norms.shape[1] == 0
    assert clipper.sensitivity == math.inf
    clear(model)
    (case.losses_of(slice(0, 3)) * torch.tensor([0.5, 1, 1])).sum().backward()
    for name, grad in grads_of(model).items():
        torch.testing.assert_close(grad, got[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)]
)
def test_batch_normalisation_is_refused_even_frozen(layer):
    model = nn.Sequential(nn.Linear(3, 3), layer.requires_grad_(False))
    with pytest.raises(
        UnsupportedLayerError, match=rf"1 \({type(layer).__name__}\) mixes or keeps"
    ):
        make_clipper(model, "bk", threshold=1.0)


def used_twice(layer, x, size):
    y, again = layer(x), layer(x)
    return (
        size * y.flatten(1).sum(1) - size * again.flatten(1).sum(1) + y.flatten(1).square().sum(1)
    )


def signs_alternate(layer, x, size):
    y = layer(x)
    signs = torch.ones(y.shape[1])
    signs[1::2] = -1
    return size * (y * signs[:, None]).sum((1, 2)) + y.square().sum((1, 2))


def bias_alone():
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    return layer


@pytest.mark.parametrize("style", [*PRIVATE_STYLES, "lee_kifer", "per_param"])
@pytest.mark.parametrize(
    ("make", "shape", "losses"),
    [
        (lambda: nn.Conv2d(2, 3, 3), (2, 6, 6), used_twice),
        (lambda: nn.LayerNorm(4), (5, 4), used_twice),
        (lambda: nn.Linear(4, 3), (5, 4), used_twice),
        (bias_alone, (8, 4), signs_alternate),
        (lambda: nn.LayerNorm(4, bias=False), (8, 4), signs_alternate),
    ],
    ids=["conv twice", "norm twice", "linear twice", "bias alone", "norm alone"],
)
def test_a_gradient_that_cancels_does_not_wipe_out_the_others_in_float32(
    style, make, shape, losses
):
    """A norm of zero, of terms so large that those of all other records would vanish.

    A thirty-second of the threshold for each of these is what rounding may take (pitfalls.md).
    """
    torch.manual_seed(0)
    x, size = torch.randn(1, *shape).repeat(64, *[1] * len(shape)), torch.zeros(64)
    if losses is signs_alternate:  # equal positions
        x = x[:, :1].repeat(1, shape[0], 1)
    layer = make()
    clipper = make_clipper(layer, style, threshold=1.0)

    def total(first, size):
        clear(layer)
        clipper.backward(losses(layer, x[first:], size[first:]))
        return {name: p.grad.clone() for name, p in clipper.parameters.items()}

    for _ in range(3):  # batches that are compared with autograd
        total(0, size)
        total(1, size)
    size[0] = 1e13
    others, moved = total(1, size), total(0, size)
    squares = [(moved[name] - others[name]).double().square().sum() for name in moved]
    assert float(sum(squares)) ** 0.5 <= 64 / 32


def test_a_parameter_outside_the_clipper_a_loss_of_all_records_and_weights_are_refused():
    model, outside = nn.Linear(3, 3), nn.Linear(3, 3)
    clipper = make_clipper(model, "bk", threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match="not the clipper's"):
        clipper.backward(outside(model(torch.randn(2, 3))).sum(1))
    with pytest.raises(ValueError, match="one loss per record"):
        clipper.backward(model(torch.randn(2, 3)).mean())
    with pytest.raises(ValueError, match="from 0 to 1"):
        clipper.backward(model(torch.randn(2, 3)).sum(1), weights=torch.tensor([1, 1.5]))
