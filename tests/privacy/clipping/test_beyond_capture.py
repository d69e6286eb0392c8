"""What hooks and graphs do not show of themselves: refused, or made exact; in no case let through.

Every case here once released more than the threshold, or another sum, without a word.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.clipping import clipper as clippers
from tests.privacy.reference import clear

PLANS = ["bk", "materialised", "ghost", "lee_kifer", "per_layer"]
TWO = ["ghost", "lee_kifer"]


def released(model, clipper, losses):
    clear(model)
    clipper.backward(losses)
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))


def autocast(function, *inputs):
    with torch.autocast("cpu", torch.bfloat16):
        return function(*inputs).float()


class Recomputing(torch.autograd.Function):
    """Runs a layer without gradients, and again in a backward of its own."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            ctx.layer(x).backward(g)
        return x.grad, None


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.again, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def losses(self, x):
        return self.head(Recomputing.apply(self.first(x), self.again)).square().mean((1, 2))

    def forward(self, x):
        return self.losses(x)


@pytest.mark.parametrize("style", PLANS)
def test_functions_that_run_layers_in_their_own_backward_are_refused(style):
    """Their gradients would be added to .grad as they are."""
    model, x = Reversible(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=0.1)
    with pytest.raises(UnsupportedLayerError, match=r"again.*RecomputingBackward"):
        released(model, clipper, model(x))
    # A method that is not the model's forward tells nobody; what arrives in .grad does.
    clipper.reset()
    with pytest.raises(UnsupportedLayerError, match=r"'again\.(weight|bias)'.*unclipped"):
        released(model, clipper, model.losses(x))
    assert clipper.unfinished


@pytest.mark.parametrize("style", PLANS)
def test_reentrant_checkpoints_are_refused_where_only_a_head_leads_to_them(style):
    """Autograd's own guard stays silent here, and the blocks would not be trained."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            x = x.clone().requires_grad_()
            return self.head(checkpoint(self.block, x, use_reentrant=True)).square().mean((1, 2))

    model = Model()
    clipper = make_clipper(model, style, threshold=0.1)
    with pytest.raises(UnsupportedLayerError, match="use_reentrant=False"):
        released(model, clipper, model(torch.randn(3, 2, 4)))


class Switched(nn.Module):
    """Does something else once ``on``: after the batch that is checked."""

    def __init__(self, also):
        super().__init__()
        self.first, self.second, self.also, self.on = nn.Linear(3, 4), nn.Linear(4, 2), also, False

    def forward(self, x):
        x = x.clone().requires_grad_()
        h = self.first(x)
        losses = self.second(torch.tanh(h)).square().mean((1, 2))
        return losses + self.also(self, x, h) if self.on else losses


def behind_the_layer(model, x, h):
    return F.linear(x, model.first.weight).square().sum((1, 2))


def penalty(model, x, h):
    """Double backward uses the transposed weight that the layer's forward made."""
    (slope,) = torch.autograd.grad((h * torch.arange(4.0)).sum(), x, create_graph=True)
    return slope.square().sum((1, 2))


@pytest.mark.parametrize("style", PLANS)
@pytest.mark.parametrize(("also", "cast"), [(behind_the_layer, True), (penalty, False)])
def test_uses_through_a_cached_copy_of_the_weight_are_counted(style, also, cast):
    model, x = Switched(also), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    losses = (lambda: autocast(model, x)) if cast else (lambda: model(x))
    released(model, clipper, losses())
    model.on = True
    with pytest.raises(UnsupportedLayerError, match=r"'first.weight' is used 2 times"):
        released(model, clipper, losses())


@pytest.mark.parametrize("style", PLANS)
def test_under_autocast_layers_may_be_called_twice(style):
    """Both calls share the rounded copy of the weight, whose edge to the parameter is one."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x))).square().mean((1, 2))

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1e-3)
    assert released(model, clipper, autocast(model, x[:1])) <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize("style", PLANS)
def test_under_autocast_norms_are_of_the_inputs_as_the_layer_rounded_them(style):
    """Two positions cancel in float32, and differ by a whole step in bfloat16.

    Sums that are products in bfloat16 have an allowance in their norms (`rules.halves`), here of
    more than the norm, since nearly all of it cancels.
    """
    model = nn.Linear(1, 1, bias=False)
    clipper = make_clipper(model, style, threshold=1.0)
    x, scale = torch.tensor([[[100.24], [100.26]]]), torch.tensor([[[50.0], [-50.0]]])
    for _ in range(2):
        moved = released(model, clipper, (autocast(model, x) * scale).sum((1, 2)))
        norm = clipper.norms.item()
        assert 25 * (1 - 1e-5) <= norm < 75
        assert moved == pytest.approx(25 / norm, rel=2e-2)
        assert moved <= 1 + 1e-5


@pytest.mark.parametrize("style", TWO)
def test_under_autocast_one_record_moves_a_large_sum_by_its_threshold(style):
    """Autograd would round the sum over the batch, by more than one record's share of it."""
    torch.manual_seed(0)
    model, v = nn.Linear(8, 8, bias=False), 0.5 + torch.rand(8)
    x = (0.5 + torch.rand(8)) * (1 + 0.05 * torch.rand(2049, 1, 1))
    clipper = make_clipper(model, style, threshold=1.0)
    sums = []
    for n in (2049, 2048):
        released(model, clipper, (autocast(model, x[:n]) * v * 10).sum((1, 2)))
        sums.append(model.weight.grad.double().clone())
    assert (sums[0] - sums[1]).norm() <= 1 + 1e-3


@pytest.mark.parametrize("style", PLANS)
def test_backward_within_autocast_is_as_exact_as_without(style):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    clipper = make_clipper(model, style, threshold=0.01)
    with torch.autocast("cpu", torch.bfloat16):
        losses = model(torch.randn(1, 5, 8)).float().square().mean((1, 2))
        assert 0.0098 <= released(model, clipper, losses) <= 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("style", PLANS)
def test_products_are_in_full_float32_whatever_the_process_allows(style):
    """With factors rounded to bfloat16 a Gram matrix cancels to nothing where the sum does not."""
    model = nn.Linear(64, 64, bias=False)
    clipper = make_clipper(model, style, threshold=1.0)
    x = torch.full((1, 2, 64), 1.0015)
    x[0, 1] += 0.002
    torch.set_float32_matmul_precision("medium")
    try:
        for k in range(20):
            scale = torch.full((1, 2, 64), 100 * 2 ** (k / 20))
            scale[0, 1] *= -1
            moved = released(model, clipper, (model(x) * scale).sum((1, 2)))
            assert moved <= 1 + 1e-3
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


class Hooked(nn.Module):
    """A hook that clamps a hidden gradient; or rows that a key orders inside the model."""

    def __init__(self, clamp):
        super().__init__()
        self.first, self.head, self.clamp = nn.Linear(3, 4), nn.Linear(4, 1), clamp

    def forward(self, x, key):
        h = torch.tanh(self.first(x))
        if self.clamp:
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-1, 1))
            return self.head(h).square().mean((1, 2)) * key
        order = key.argsort()
        return self.head(h[order])[order.argsort()].square().mean((1, 2))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("style", TWO)
@pytest.mark.parametrize("clamp", [True, False])
def test_what_makes_the_second_backward_another_one_is_an_error(style, clamp, waits, monkeypatch):
    """Also on a device for which the host waits: it looks once, in the end."""
    monkeypatch.setattr(clippers, "waits", lambda device: waits)
    torch.manual_seed(0)
    model, x = Hooked(clamp).double(), 3 * torch.randn(4, 2, 3).double()
    x[0] *= 1e-3
    clipper = make_clipper(model, style, threshold=0.1)
    usual, unusual = torch.tensor([1.0, 2, 3, 4]) / 100, torch.tensor([3.0, 2, 4, 1]) * 1e4
    released(model, clipper, model(x, usual))  # clamps nothing, changes no row's place
    released(model, clipper, model(x, usual))
    found = "second backward brought other gradients" if clamp else "rows change places"
    with pytest.raises(UnsupportedLayerError, match=found):
        released(model, clipper, model(x, unusual))
    assert clipper.unfinished == clamp  # what moves rows is found before anything is summed


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position, self.head = (
            nn.Embedding(9, 4),
            nn.Embedding(9, 4),
            nn.Linear(4, 1),
        )

    def losses(self, ids):
        rows = torch.arange(ids.shape[1])[None]
        return self.head(torch.tanh(self.token(ids) + self.position(rows))).square().mean((1, 2))

    def forward(self, ids):
        return self.losses(ids)


@pytest.mark.parametrize("style", ["bk", "ghost"])
def test_an_earlier_forward_says_nothing_about_the_batch_of_a_later_one(style):
    """One record would have become as many as were evaluated before."""
    model, ids = Positions().double(), torch.randint(0, 9, (6, 5))
    clipper = make_clipper(model, style, threshold=0.01)
    with torch.no_grad():
        model(ids)
    released(model, clipper, model(ids))
    losses = model.losses(ids[:1])
    assert losses.shape == (1,)
    assert released(model, clipper, losses) <= 0.01 * (1 + 1e-9)


def test_an_evaluation_between_a_checkpointed_forward_and_its_backward():
    class Model(Positions):
        def forward(self, ids):
            return checkpoint(self.losses, ids, use_reentrant=False)

    torch.manual_seed(0)
    model, ids = Model().double(), torch.randint(0, 9, (3, 5))
    clipper = make_clipper(model, "bk", threshold=0.01)
    clipper.backward(model(ids))
    expected = [p.grad.clone() for p in model.parameters()]
    clear(model)
    losses = model(ids)
    with torch.no_grad():
        model(torch.cat([ids, ids]))
    clipper.backward(losses)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


class Gated(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.first, self.wrong, self.gate = nn.Linear(3, 3), nn.Linear(3, 3), gate
        self.wrong.register_forward_hook(lambda module, inputs, output: 10 * output)

    def forward(self, x):
        h = self.first(x)
        return (h + self.gate * self.wrong(h)).square().mean((1, 2))


@pytest.mark.parametrize("style", ["bk", "ghost"])
def test_a_gradient_too_small_to_be_compared_is_compared_again_soon(style):
    torch.manual_seed(0)
    model, x = Gated(1e-7).double(), torch.randn(4, 2, 3).double()
    clipper = make_clipper(model, style, threshold=0.1)
    released(model, clipper, model(x))
    model.gate = 1.0
    with pytest.raises(UnsupportedLayerError, match=r"wrong\.(weight|bias)"):
        released(model, clipper, model(x))


@pytest.mark.parametrize("style", ["bk", "ghost", "per_param"])
def test_a_loss_that_is_not_finite_hides_no_wrong_rule(style):
    model, x = Gated(1.0).double(), torch.randn(4, 2, 3).double()
    clipper = make_clipper(model, style, threshold=0.1)
    with pytest.raises(UnsupportedLayerError, match="another gradient than autograd"):
        released(model, clipper, model(x).where(torch.arange(4) != 2, math.inf))


class WithoutSlope(nn.Module):
    """The square root of zero has no slope: the gradient of `flat` is never a number."""

    def __init__(self, layer):
        super().__init__()
        self.flat, self.layer = nn.Linear(3, 1), layer
        nn.init.zeros_(self.flat.weight)
        nn.init.zeros_(self.flat.bias)

    def forward(self, x):
        return self.layer(x).square().mean((1, 2)) + 0 * self.flat(x).square().sqrt().sum((1, 2))


@pytest.mark.parametrize("style", ["bk", "per_layer"])
def test_a_gradient_that_is_not_finite_hides_no_wrong_rule(style):
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, a, out: out.roll(1, 0))
    x = torch.randn(4, 2, 3).double()
    model = nn.Sequential(WithoutSlope(nn.Sequential(layer, nn.Tanh()))).double()
    clipper = make_clipper(model, style, threshold=0.1)
    with pytest.raises(UnsupportedLayerError, match=r"rule for parameter '0\.layer"):
        released(model, clipper, model(x))


class Coupled(nn.Module):
    """Records share a mean, in a layer whose gradient is next to nothing beside another's."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)

    def forward(self, x):
        h = self.small(x)
        return (self.large(1e7 * x) + h * torch.tanh(5 * h.mean(0, keepdim=True))).sum((1, 2))


@pytest.mark.parametrize("style", ["per_layer", "per_param"])
def test_a_small_gradient_with_a_threshold_of_its_own_is_compared_by_itself(style):
    torch.manual_seed(0)
    model, x = Coupled().double(), torch.randn(8, 2, 3).double()
    clipper = make_clipper(model, style, threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match=r"small\.weight"):
        released(model, clipper, model(x))


class Accumulating(torch.autograd.Function):
    """Adds a weight's gradient to ``.grad`` by hand, as fused kernels do."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return x @ layer.weight.detach().T

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        weight = ctx.layer.weight
        new = g.flatten(0, 1).T @ x.flatten(0, 1)
        weight.grad = new if weight.grad is None else weight.grad + new
        return g @ weight.detach(), None


@pytest.mark.parametrize(
    "style", ["bk", "ghost", "materialised", "per_param", "per_layer_adaptive"]
)
def test_a_gradient_that_a_function_writes_by_hand_is_refused(style):
    class Fused(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return Accumulating.apply(self.first(x), self.second).square().mean((1, 2))

    model, x = Fused(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=0.1)
    with pytest.raises(UnsupportedLayerError, match=r"grad of parameter 'second.weight'"):
        released(model, clipper, model(x))


@pytest.mark.parametrize(("model_type", "loss_type"), [("float", "double"), ("double", "float")])
def test_losses_in_another_float_type(model_type, loss_type):
    model = getattr(nn.Linear(3, 2), model_type)()
    x = torch.randn(4, 3).to(model.weight.dtype)
    clipper = make_clipper(model, "bk", threshold=0.01)
    losses = getattr(model(x).square().sum(1)[:1] * 100, loss_type)
    with pytest.raises(UnsupportedLayerError, match="1 losses"):
        clipper.backward(losses())
    clipper.reset()
    assert released(model, clipper, getattr(model(x[:1]).square().sum(1) * 100, loss_type)()) == (
        pytest.approx(0.01, rel=1e-5)
    )


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_weights_that_are_made_of_other_parameters_are_refused_by_name():
    old = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 1))
    clipper = make_clipper(old, "bk", threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match="weight_g"):
        clipper.backward(old(torch.randn(2, 5, 3)).square().mean((1, 2)))


@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer"])
def test_under_autocast_records_that_cancel_are_told_from_a_wrong_rule(style):
    """A head's bias: some records pull it as much up as others pull it down."""
    scales = torch.tensor([1.0, 1.0, 1.0, 0.86])  # with the weights of the check they cancel
    for seed in range(10):
        torch.manual_seed(seed)
        model, x = nn.Linear(16, 2), 0.1 * torch.randn(4, 16)
        clipper = make_clipper(model, style, threshold=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            losses = F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1]), reduction="none")
        clipper.backward(losses * scales)
        clipper.close()


def test_under_autocast_a_wrong_rule_is_still_found():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 2)), torch.randn(8, 64)
    model[0].register_forward_hook(lambda module, inputs, output: 1.2 * output)
    clipper = make_clipper(model, "bk", threshold=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        losses = F.cross_entropy(model(x), torch.arange(8) % 2, reduction="none")
    with pytest.raises(UnsupportedLayerError, match="gives another gradient than autograd"):
        clipper.backward(losses)


class Repeating(nn.Module):
    """Repeats what the batch shares by itself, as prompts in front of the inputs."""

    def __init__(self):
        super().__init__()
        self.prompt = nn.Embedding(3, 4)
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        one = self.prompt(torch.arange(3)[None])
        return self.layer(torch.cat([one.repeat(len(x), 1, 1), x], 1)).sum((1, 2))


def test_a_model_that_fails_on_the_rows_it_was_given_says_which():
    model, x = Repeating(), torch.randn(2, 5, 4)
    model(x)
    clipper = make_clipper(model, "bk", threshold=1.0)
    with pytest.raises(RuntimeError, match="Sizes of tensors") as caught:
        model(x)
    (note,) = caught.value.__notes__
    assert note.startswith("dpft: prompt, which the records")
    clipper.reset()
    clipper.backward(model(x[:1]))  # one record needs no further row
    with pytest.raises(RuntimeError) as caught:
        model(torch.randn(1, 5, 3))
    assert not hasattr(caught.value, "__notes__")
