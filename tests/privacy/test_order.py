"""Models that rearrange their rows by what is in them, and look right until they do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.moves import movers
from dpft.privacy.styles import STYLES
from dpft.privacy.verify import _walk
from tests.privacy.reference import clear, reference_clip, same_grads
from tests.privacy.small_models import MODELS, build

PLANS = ("materialised", "lee_kifer", "ghost", "bk", "fused")
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


class Selecting(Sorting):
    def sorted(self, h, order):
        return h.index_select(-3, order)


class Gathering(Sorting):
    def sorted(self, h, order):
        return h.gather(0, order[:, None, None].expand_as(h))


class Looking(Sorting):
    def sorted(self, h, order):
        return F.embedding(order, h.flatten(1)).view_as(h)


class Stacking(Sorting):
    def sorted(self, h, order):
        return torch.stack([h[i] for i in order])


class Joining(Sorting):
    def sorted(self, h, order):
        return torch.cat([h[int(i) : int(i) + 1] for i in order])


class Putting(Sorting):
    def sorted(self, h, order):
        return torch.zeros_like(h).index_put((order.argsort(),), h)


class Adding(Sorting):
    def sorted(self, h, order):
        return torch.zeros_like(h).index_add(0, order.argsort(), h)


class Scattering(Sorting):
    def sorted(self, h, order):
        return torch.zeros_like(h).scatter(0, order.argsort()[:, None, None].expand_as(h), h)


KINDS = (*(Sorting, Selecting, Gathering, Looking, Stacking, Joining, Putting, Adding, Scattering),)


def losses(model, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 32, (len(lengths), 6), generator=generator)
    labels = torch.arange(len(lengths)) % 2
    return F.cross_entropy(model(ids, torch.tensor(lengths)), labels, reduction="none")


def made(kind=Sorting, style="bk", **options):
    torch.manual_seed(0)
    model = kind(**options).double()
    return model, make_clipper(model, style, threshold=C)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_moved_later_are_found(kind):
    model, clipper = made(kind)
    for seed in range(3):
        clipper.backward(losses(model, [6, 6, 6, 6], seed))
    with pytest.raises(UnsupportedLayerError, match="rows change places inside the model"):
        clipper.backward(losses(model, [2, 6, 4, 3], 3))


@pytest.mark.parametrize("style", ["flat", "lee_kifer", "ghost", "bk", "per_layer", "per_param"])
def test_every_plan_finds_them(style):
    model, clipper = made(style=style)
    clipper.backward(losses(model, [6, 6, 6, 6]))
    with pytest.raises(UnsupportedLayerError, match="rows change places inside the model"):
        clipper.backward(losses(model, [2, 6, 4, 3], 3))


def test_two_of_many_that_change_places_are_found_within_some_batches():
    """Two records have the same factor in one batch of eight, never in all."""
    model, clipper = made()
    clipper.backward(losses(model, [6] * 64))
    moved = [6] * 64
    moved[10], moved[11] = 5, 7

    def several():
        for seed in range(5):
            clear(model)
            clipper.backward(losses(model, moved, seed))

    with pytest.raises(UnsupportedLayerError, match="rows change places"):
        several()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("style", ["ghost", "bk", "per_layer"])
def test_in_half_precision_too(style, half):
    torch.manual_seed(0)
    model = Sorting()
    clipper = make_clipper(model, style, threshold=C)
    for lengths in ([6, 6, 6, 6], [6, 6, 6, 6]):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            batch = losses(model, lengths)
        clipper.backward(batch.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        batch = losses(model, [2, 6, 4, 3])
    with pytest.raises(UnsupportedLayerError, match="rows change places"):
        clipper.backward(batch.float())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_come_back_before_a_layer_sees_them_are_no_harm(kind):
    model, clipper = made(kind, inner=False)
    for seed, lengths in enumerate(([6, 6, 6, 6], [2, 6, 4, 3], [3, 3, 5, 1])):
        clear(model)
        batch = losses(model, lengths, seed)
        with clipper.paused():
            norms, total = reference_clip(
                model,
                lambda i, lengths=lengths, seed=seed: losses(model, lengths, seed)[i],
                batch=4,
                factor=lambda norm: (C / norm).clamp(max=1),
            )
        clear(model)
        clipper.backward(batch)
        torch.testing.assert_close(clipper.norms[:, 0], norms)
        same_grads(model, total, 1e-10)


def test_a_record_whose_loss_is_not_finite_is_no_reason():
    model, clipper = made(inner=False)
    clipper.backward(losses(model, [6, 6, 6, 6]))
    batch = losses(model, [2, 6, 4, 3])
    clipper.backward(batch * torch.tensor([1.0, float("nan"), 1.0, float("inf")]))
    assert (clipper.factors[:, 0] > 0).tolist() == [True, False, True, False]


class Last(nn.Module):
    """A class from each record's last position, as decoders are given heads."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, last):
        return self.b(self.a(x))[torch.arange(len(x)), last]


def moving(losses, model, batch):
    return movers(_walk(losses, dict(model.named_parameters()))[1], batch)


def test_an_index_of_each_record_by_itself_moves_nothing():
    model, x = Last(), torch.randn(5, 3, 4)
    assert moving(model(x, torch.tensor([2, 1, 0, 2, 2])).sum(1), model, 5) == []
    h = model.a(x)
    for still in (h[:, torch.tensor([2, 0])], h.flip(1), h.roll(1, -1), h.gather(1, h.argsort(1))):
        assert moving(still.sum((1, 2)), model.a, 5) == []
    assert len(moving(h.flip(-3).sum((1, 2)), model.a, 5)) == 1
    assert len(moving(h.roll(1, 0).sum((1, 2)), model.a, 5)) == 1


@pytest.mark.parametrize("name", MODELS)
def test_usual_models_are_spared_the_second_look(name):
    case = build(name)
    assert moving(case.all_losses(), case.model, case.batch) == []


def test_offloaded_indices_are_looked_at_with_care():
    """What a hook has packed is not unpacked to see whether rows move."""
    model, x = Last(), torch.randn(5, 3, 4)
    clipper = make_clipper(model, "bk", threshold=C)
    with torch.autograd.graph.save_on_cpu():
        batch = model(x, torch.tensor([2, 1, 0, 2, 2])).sum(1)
    assert len(moving(batch, model, 5)) == 1
    clipper.backward(batch)


def test_every_plan_is_tested_here():
    assert {STYLES[s].plan for s in ("flat", "lee_kifer", "ghost", "bk", "per_layer")} == set(PLANS)
