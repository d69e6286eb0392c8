"""Models that rearrange their rows by what is in them, and look right until they do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.verification.layout import row_permuting_nodes
from tests.privacy.reference import compare, loop_of
from tests.privacy.small_models import MODELS, Parts, build

C = 0.1


class Sorting(nn.Module):
    """A layer between sorting by length and back, as for packed sequences."""

    def __init__(self, inner=True):
        super().__init__()
        self.inner = inner
        self.embedding = nn.Embedding(32, 8)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)

    def sorted(self, h, order):
        return h[order]

    def forward(self, ids, lengths):
        order = lengths.argsort(descending=True, stable=True)
        h = self.sorted(self.embedding(ids), order)
        if self.inner:
            h = torch.tanh(self.a(h))
        h = self.sorted(h, order.argsort())
        return self.b((h if self.inner else self.a(h)).mean(1))


class Halved(Sorting):
    """By views alone: two halves are interleaved, and taken apart again."""

    def sorted(self, h, order):
        if order.tolist() == sorted(order.tolist()):
            return h
        return h.unflatten(0, (2, len(h) // 2)).transpose(0, 1).reshape(h.shape)


KINDS = (Sorting, Halved)


def losses(model, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 32, (len(lengths), 6), generator=generator)
    labels = torch.arange(len(lengths)) % 2
    return F.cross_entropy(model(ids, torch.tensor(lengths)), labels, reduction="none")


def made(kind=Sorting, style="bk", **options):
    torch.manual_seed(0)
    model = kind(**options).double()
    return model, make_clipper(model, style, threshold=C)


PLANS = ("materialised", "lee_kifer", "ghost", "bk", "per_layer", "per_param")


@pytest.mark.parametrize(("kind", "style"), list(zip(3 * KINDS, PLANS, strict=True)))
def test_rows_that_are_moved_later_are_found(kind, style):
    model, clipper = made(kind, style)
    for seed in range(3):
        clipper.backward(losses(model, [6, 6, 6, 6], seed))
    with pytest.raises(UnsupportedLayerError, match="rows change places inside the model"):
        clipper.backward(losses(model, [2, 6, 4, 3], 3))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_come_back_before_a_layer_sees_them_are_no_harm(kind):
    model, clipper = made(kind, inner=False)
    for seed, lengths in enumerate(([6, 6, 6, 6], [2, 6, 4, 3], [3, 3, 5, 1])):
        expected = loop_of(
            model,
            clipper,
            lambda i, lengths=lengths, seed=seed: losses(model, lengths, seed)[i],
            batch=4,
        )
        compare(model, clipper, losses(model, lengths, seed), expected)


class Last(Parts):
    """A class from each record's last position, as decoders are given heads."""

    def forward(self, x, last):
        return self.b(self.a(x))[torch.arange(len(x)), last]


def moving(model, losses_of):
    """Functions in the graph of ``losses_of()`` that may move rows."""
    clipper = make_clipper(model, "bk", threshold=C)
    losses = losses_of()
    found = row_permuting_nodes(
        losses, [edge for call in clipper.capture.calls for edge in call.outputs]
    )
    clipper.close()
    return [node.name() for node in found]


def test_an_index_of_each_record_by_itself_moves_nothing():
    model, x = Last(a=nn.Linear(4, 4), b=nn.Linear(4, 2)), torch.randn(5, 3, 4)
    assert moving(model, lambda: model(x, torch.tensor([2, 1, 0, 2, 2])).sum(1)) == []


# Of a (B, T, d) tensor with B=6, T=4, d=8.
STILL = {
    "positions in reverse": lambda h: h.flip(1),
    "gathered positions": lambda h: h.gather(1, h.argsort(1)),
    "windows": lambda h: (
        h.view(6, 2, 2, 8).transpose(1, 2).reshape(12, 2, 8).softmax(1).view(6, -1)
    ),
    "heads": lambda h: h.view(6, 4, 2, 4).permute(2, 0, 1, 3).flatten(0, 1).view(2, 6, 16).sum(0),
    "positions first": lambda h: h.transpose(0, 1).reshape(24, 8).tanh().view(4, 6, 8).mean(0),
    "an attention": lambda h: F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None]),
    "an einsum": lambda h: torch.einsum("btd,bsd->bts", h, h),
    "half of the features": lambda h: torch.cat([h.chunk(2, -1)[1], h.chunk(2, -1)[0]], -1),
}
MOVED = {
    "reversed": lambda h: h.flip(-3),
    "rolled": lambda h: h.roll(1, 0),
    "gathered": lambda h: h.gather(0, torch.arange(6)[:, None, None].expand_as(h)),
    "stacked": lambda h: torch.stack([h[i] for i in range(6)]),
    "added to rows": lambda h: torch.zeros_like(h).index_add(0, torch.arange(6), h),
    "reversed as rows": lambda h: h.flatten(0, 1).flip(0).view_as(h),
    "sorted behind": lambda h: h.permute(1, 2, 0).sort(-1)[0].permute(2, 0, 1),
    "interleaved": lambda h: h.view(2, 3, 4, 8).transpose(0, 1).reshape(6, 4, 8),
    "added up over records": lambda h: h.cumsum(0),
    "multiplied over records": lambda h: torch.ones(6, 6).mm(h.flatten(1)).view_as(h),
    "by a mask": lambda h: h[torch.ones(6, 4).bool()].view_as(h),
    "in strides": lambda h: h.as_strided((6, 4, 8), (8, 48, 1)),
}


@pytest.mark.parametrize("name", [*STILL, *MOVED])
def test_functions_that_may_move_records_are_found_and_no_others(name):
    model, x = nn.Linear(8, 8), torch.randn(6, 4, 8)
    change = STILL.get(name) or MOVED[name]
    found = moving(model, lambda: change(model(x)).reshape(6, -1).square().sum(1))
    assert bool(found) is (name in MOVED)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_usual_models_are_spared_the_second_look(name, attention):
    case = build(name)
    if hasattr(case.model, "set_attn_implementation") and name != "wrn":  # it has no attention
        case.model.set_attn_implementation(attention)
    assert moving(case.model, case.all_losses) == []


class RegisterPostBackwardFunction(torch.autograd.Function):
    """By its name alone FSDP's, whose inputs pass as they are."""

    @staticmethod
    def forward(ctx, group, h):
        return h.flip(0)

    @staticmethod
    def backward(ctx, g):
        return None, g.flip(0)


def test_a_function_is_not_trusted_for_its_name():
    layer = nn.Linear(3, 3)
    h = layer(torch.randn(4, 3))
    losses = RegisterPostBackwardFunction.apply(None, h).sum(1)
    found = row_permuting_nodes(losses, [torch.autograd.graph.get_gradient_edge(h)])
    assert [node.name() for node in found] == ["RegisterPostBackwardFunctionBackward"]
