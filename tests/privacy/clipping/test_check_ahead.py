"""Rules checked on a few records ahead of a batch: nothing is let through, no memory, no bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.privacy import UnsupportedLayerError, make_clipper


def ahead(model, clipper, x):
    """A step's backward as training does it."""
    some = clipper.to_check(len(x))
    if some is not None:
        clipper.check(model(x[some]))
    clipper.backward(model(x))
    return some


class Wrong(nn.Module):
    """A sound model, but for what ``what`` does to activations, and ``inside`` in a layer."""

    def __init__(self, what=lambda h: h, inside=None):
        super().__init__()
        self.first, self.second, self.what = nn.Linear(3, 4), nn.Linear(4, 2), what
        if inside is not None:
            inside(self.first)

    def forward(self, x):
        h = self.what(torch.tanh(self.first(x)))
        return self.second(h).square().mean((1, 2))


def doubled(layer):
    """A hook makes the layer another one than its type says."""
    layer.register_forward_hook(lambda module, args, out: 2 * out)


def reversed_inside(layer):
    layer.forward = lambda x: F.linear(x.flip(0), layer.weight, layer.bias)


def in_place(layer):
    layer.forward = lambda x: F.linear(x.data.mul_(2), layer.weight, layer.bias)


def in_large_batches(what):
    """Only where a batch has more records than are checked by themselves."""
    return lambda h: what(h) if len(h) > 4 else h


WRONG = {
    "doubled": lambda: Wrong(inside=doubled),
    "reversed": lambda: Wrong(inside=reversed_inside),
    "in place": lambda: Wrong(inside=in_place),
    "mean": lambda: Wrong(lambda h: h - h.mean(0)),
    "rolled": lambda: Wrong(lambda h: torch.cat([h[1:], h[:1]])),
    "mean of many": lambda: Wrong(in_large_batches(lambda h: h - h.mean(0))),
    "a little of many": lambda: Wrong(in_large_batches(lambda h: h + 1e-2 * h.mean(0))),
    "halves of many exchanged": lambda: Wrong(in_large_batches(lambda h: h.roll(4, 0))),
}


@pytest.mark.parametrize("style", ["bk", "per_layer", "ghost", "materialised"])
@pytest.mark.parametrize("wrong", WRONG)
def test_every_kind_of_coupling_is_found(wrong, style):
    torch.manual_seed(0)
    model, x = WRONG[wrong](), torch.randn(8, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    with pytest.raises((UnsupportedLayerError, RuntimeError), match=r"first|second|inplace"):
        ahead(model, clipper, x)
    assert all(p.grad is None for p in model.parameters())


def test_it_is_asked_for_when_a_check_is_due_and_looks_from_end_to_end():
    torch.manual_seed(0)
    model, x = Wrong(), torch.randn(9, 2, 3)
    clipper = make_clipper(model, "bk", threshold=1.0)
    asked = [ahead(model, clipper, x) is not None for _ in range(300)]
    assert [number + 1 for number, found in enumerate(asked) if found] == [1, 64, 256]
    clipper.reset()
    assert clipper.to_check(9).tolist() == [0, 3, 5, 8]
    assert clipper.to_check(2).tolist() == [0, 1]
    assert clipper.to_check(4, torch.tensor([True, False, True, False])).tolist() == [0, 2]
    assert make_clipper(Wrong(), "none").to_check(9) is None
