"""What is not trained is compared with itself, bit for bit."""

import pytest
import torch
from torch import nn

from dpft.privacy.checks import Untouched


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(5, dtype=torch.int64))
        self.register_buffer("halves", torch.ones(4, 2, dtype=torch.bfloat16).T)
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


CHANGES = {
    "table.weight": lambda model: model.table.weight.data[2].mul_(1 + 1e-6),
    "head.bias": lambda model: model.head.bias.data.neg_(),
    "mean": lambda model: model.mean.__setitem__(1, 5e-324),
    "counts": lambda model: model.counts.__setitem__(slice(0, 2), torch.tensor([1, -1])),
    "halves": lambda model: model.halves.__setitem__((0, 3), 1.0078125),
    "flags": lambda model: model.flags.copy_(torch.tensor([False, True, True])),
    "phase": lambda model: model.phase.__setitem__(0, 1 + 1e-7j),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_least_change_is_seen_and_named(name):
    model = Model()
    untouched = Untouched(model)
    assert untouched.changed() == []
    CHANGES[name](model)
    assert untouched.changed() == [name]


def test_what_is_moved_or_not_saved_may_change():
    model = Model()
    untouched = Untouched(model, {id(p) for p in model.head.parameters()})
    model.head.weight.data.zero_()
    model.scratch.add_(1)
    assert untouched.changed() == []
