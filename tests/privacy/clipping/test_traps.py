"""What other implementations got wrong, or refuse: each is a test here."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import TensorWeakRef

from dpft.privacy import Mechanism, UnsupportedLayerError, make_clipper
from dpft.privacy.clipping.calls import uses_of
from tests.privacy.reference import clear, equals_loop, grads_of
from tests.privacy.small_models import build

# One style of each plan, and each kind of partition.
STYLES = ["flat", "lee_kifer", "ghost", "bk", "per_layer", "per_param", "by_type"]


class Backwards(nn.Module):
    """Layers are registered in the opposite order of their use, and one is used twice."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.middle = nn.Linear(4, 4)
        self.first = nn.Linear(3, 4)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.middle(h))
        h = torch.tanh(self.middle(h))
        return self.last(h).square().mean((1, 2))


@pytest.mark.parametrize("style", STYLES)
def test_order_of_registration_does_not_matter_and_layers_may_be_called_twice(style):
    """Hooks that wait for the first registered layer hand out gradients before they are whole."""
    torch.manual_seed(0)
    model, x = Backwards().double(), torch.randn(4, 5, 3).double()
    equals_loop(model, lambda rows: model(x[rows]), 4, style, threshold=0.05)


@pytest.mark.parametrize("style", STYLES)
def test_biases_alone(style):
    case = build("roberta_classifier", tied=False)
    for name, p in case.model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    clipper = equals_loop(case.model, case.losses_of, case.batch, style)
    case.all_losses()
    assert all(call.input() is None for call in clipper.capture.take()[0])  # no activation is kept


class Checkpointed(nn.Module):
    def __init__(self, width=6, reentrant=False):
        super().__init__()
        self.embedding = nn.Embedding(9, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(3)
        )
        self.reentrant = reentrant

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean((1, 2))


@pytest.mark.parametrize("style", STYLES)
def test_checkpointed_activations(style):
    torch.manual_seed(0)
    model, ids = Checkpointed().double(), torch.randint(0, 9, (4, 5))
    equals_loop(model, lambda rows: model(ids[rows]), 4, style, threshold=0.3)


def test_checkpointed_activations_are_not_kept_from_the_forward():
    model, ids = Checkpointed(), torch.randint(0, 9, (4, 5))
    clipper = make_clipper(model, "per_layer", threshold=1.0)
    clipper.backward(model(ids))  # verified
    kept = []

    def pack(tensor):
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        losses = model(ids)
    # Inside the blocks nothing is saved in the forward: neither by autograd nor by the clipper.
    assert torch.Size((4, 5, 12)) not in kept
    clipper.backward(losses)


def test_reentrant_checkpoints_are_refused():
    torch.manual_seed(0)
    model, ids = Checkpointed(reentrant=True), torch.randint(0, 9, (4, 5))
    clipper = make_clipper(model, "bk", threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match="use_reentrant=False"):
        clipper.backward(model(ids))


@pytest.mark.parametrize("style", STYLES)
def test_inputs_that_require_gradients_do_not_hide_layers(style):
    """A backward to the first trainable layers would not reach what lies above such an input."""

    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.top = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x, y):
            return self.top(torch.tanh(self.left(x)) + self.right(y)).square().mean((1, 2))

    torch.manual_seed(0)
    model = TwoInputs().double()
    x, y = torch.randn(4, 2, 3).double(), torch.randn(4, 2, 3).double().requires_grad_()
    equals_loop(model, lambda rows: model(x[rows], y[rows]), 4, style)
    assert y.grad is None


class Mark:
    """Lives as long as the node of the graph that holds it."""


@pytest.mark.parametrize("style", STYLES)
def test_nothing_is_kept_from_one_batch_to_the_next(style):
    """Neither after a backward nor when a forward was thrown away."""
    case = build("gpt2", tied=True)
    clipper = make_clipper(case.model, style, threshold=1.0)
    clipper.backward(case.all_losses())
    gc.collect()
    gc.disable()
    try:
        for backward in (True, False):
            losses = case.all_losses()
            calls = [weakref.ref(call) for call in clipper.capture.calls]
            graph = weakref.ref(losses.grad_fn.metadata.setdefault("mark", Mark()))
            if backward:
                clipper.backward(losses)
            del losses
            clipper.capture.take()
            assert [call() for call in calls if call() is not None] == []
            assert graph() is None
    finally:
        gc.enable()


def test_counts_below_the_estimates_are_symmetric_and_exact():
    """sum_i (1[n <= C] - 1/2), over microbatches; a record that is not finite counts nothing."""
    case = build("gpt2", tied=True)
    clipper = make_clipper(case.model, "per_layer_adaptive", threshold=0.6)
    clipper.backward(case.losses(case.model, case.rows(slice(0, 1))))
    norms = clipper.norms
    clipper.backward(case.losses(case.model, case.rows(slice(1, 4))))
    norms = torch.cat([norms, clipper.norms])
    below = (norms <= 0.6).double() - 0.5
    assert torch.equal(clipper.below, below.sum(0))
    assert 0 < (below > 0).double().mean() < 1
    assert (below.abs().amax(0) == 0.5).all()
    clipper.move([1.0] * len(clipper.groups))
    assert not clipper.below.any()
    assert clipper.sensitivity == pytest.approx(math.sqrt(len(clipper.groups)))
    broken = torch.tensor([1.0, math.nan, 1.0, 1.0], dtype=torch.float64)
    clipper.backward(case.all_losses() * broken)
    assert (clipper.below.abs() <= 1.5).all()
    assert set((clipper.below * 2 % 2).tolist()) == {1.0}  # three halves, not four
    clipper.reset()  # the batch begins again: counted twice, a record would move it by 1
    assert not clipper.below.any()
    assert clipper.estimates == (1.0,) * len(clipper.groups)


def test_explain_names_every_parameter_and_its_form():
    case = build("gpt2", tied=True)
    clipper = make_clipper(case.model, "per_layer", threshold=1.0)
    clipper.backward(case.all_losses())
    rows = {row["parameter"]: row for row in clipper.explain()}
    assert set(rows) == set(clipper.parameters)
    assert "token mask" in rows["transformer.wte.weight"]["form"]
    assert "+" in rows["transformer.wte.weight"]["form"]
    assert rows["transformer.ln_f.bias"]["form"] == "per example"


def test_norms_of_large_parameters_keep_their_digits_in_float32():
    """torch's norm of 40 million equal float32 numbers is three percent too small."""
    torch.manual_seed(0)
    model = nn.Linear(4000, 2500, bias=False)
    x = 1e-3 * (1 + torch.rand(2, 1, 4000))

    def loss(x):
        return model(x).sum((1, 2))

    for style in ("flat", "bk", "per_layer"):
        clipper = make_clipper(model, style, threshold=1.0)
        clipper.backward(loss(x))
        true = x.double().square().sum((1, 2)).mul(2500).sqrt()
        torch.testing.assert_close(clipper.norms[:, 0].double(), true, rtol=1e-6, atol=0)
        clipper.close()


class Changing(nn.Module):
    """Two layers, and a switch for something that changes from one batch to the next."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.change = ""

    def forward(self, x):
        h = self.first(x)
        out = self.second(torch.tanh(h)).square().mean((1, 2))
        if self.change == "weight used outside its layer":
            out = out + 1e3 * torch.nn.functional.linear(x, self.first.weight).square().sum((1, 2))
        if self.change == "losses bypass the last layer":
            out = out + 5 * h.square().mean((1, 2))
        return out


@pytest.mark.parametrize("style", STYLES)
def test_every_batch_is_checked_for_uses_outside_the_layers(style):
    """Not the first alone: two backwards would release what the norms have not seen."""
    torch.manual_seed(0)
    model, x = Changing(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    for _ in range(3):
        clipper.backward(model(x))
    model.change = "weight used outside its layer"
    with pytest.raises(UnsupportedLayerError, match="is used 2 times"):
        clipper.backward(model(x))


@pytest.mark.parametrize("style", STYLES)
def test_what_lies_above_the_last_layer_may_change(style):
    """A term that is switched on after warm-up bypasses the place where a backward could start."""
    torch.manual_seed(0)
    model, x = Changing().double(), torch.randn(4, 2, 3).double()
    clipper = make_clipper(model, style, threshold=0.5)
    for _ in range(3):
        clipper.backward(model(x))
    clipper.close()
    model.change = "losses bypass the last layer"
    equals_loop(model, lambda rows: model(x[rows]), 4, style, threshold=0.5)


@pytest.mark.parametrize("style", STYLES)
def test_losses_of_an_older_forward_are_refused(style):
    model, x = Changing(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    older = model(x)
    clipper.backward(model(x))  # takes the calls of both
    with pytest.raises(UnsupportedLayerError, match=r"since the last backward|was captured"):
        clipper.backward(older)


@pytest.mark.parametrize("style", STYLES)
def test_an_input_that_begins_to_require_gradients_hides_no_layer(style):
    torch.manual_seed(0)
    model, x = Changing().double(), torch.randn(4, 2, 3).double()
    clipper = make_clipper(model, style, threshold=0.3)
    clipper.backward(model(x))
    expected = grads_of(model)
    clear(model)
    clipper.backward(model(x.clone().requires_grad_()))
    for name, grad in grads_of(model).items():
        torch.testing.assert_close(grad, expected[name])


class FirstRowOnly(nn.Module):
    """Uses a lookup that all records share in a way that is right for one record alone."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Embedding(2, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        scale = self.scale(torch.arange(2)[None])[0]
        return self.head(torch.tanh(x * scale)).square().mean((1, 2))


@pytest.mark.parametrize("style", STYLES)
def test_a_batch_of_one_record_proves_nothing_about_rows(style):
    model, x = FirstRowOnly(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    clipper.backward(model(x[:1]))
    with pytest.raises(UnsupportedLayerError, match="scale"):
        clipper.backward(model(x))


@pytest.mark.parametrize("style", ["bk", "ghost"])
def test_zero_gradients_prove_nothing_about_a_rule(style):
    """After a layer that starts at zero any rule looks right; it is looked at again."""

    class Doubled(nn.Linear):
        pass

    torch.manual_seed(0)
    wrong, last = Doubled(3, 4), nn.Linear(4, 2)
    wrong.register_forward_hook(lambda module, a, out: 2 * out)
    nn.init.zeros_(last.weight)
    model, x = nn.Sequential(wrong, nn.Tanh(), last), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    clipper.backward(model(x).square().mean((1, 2)))
    with torch.no_grad():
        last.weight.normal_()
    with pytest.raises(UnsupportedLayerError, match="another gradient than autograd"):
        clipper.backward(model(x).square().mean((1, 2)))


def test_the_rules_are_checked_again_ever_more_rarely():
    model, x = Changing(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, "bk", threshold=1.0)
    checked = []
    for batch in range(300):
        (seen,) = clipper.checker.schedule._seen.values() or [None]
        before = seen.next_check if seen else 1
        clipper.backward(model(x))
        if next(iter(clipper.checker.schedule._seen.values())).next_check != before:
            checked.append(batch + 1)
    assert checked == [1, 64, 256]


@pytest.mark.parametrize("style", STYLES)
def test_a_backward_that_broke_off_must_be_begun_again(style, monkeypatch):
    """Repeating it on top of what it added would count its records twice."""
    torch.manual_seed(0)
    model, x = Changing(), torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    clipper.backward(model(x))
    expected = grads_of(model)
    clear(model)

    class BrokenError(RuntimeError):
        pass

    def fail(*args, **kwargs):
        raise BrokenError

    with monkeypatch.context() as patch:
        patch.setattr("dpft.privacy.clipping.plans.ClippingBatch.result", fail)
        with pytest.raises(BrokenError):
            clipper.backward(model(x))
    with pytest.raises(RuntimeError, match=r"clipper\.reset\(\)"):
        clipper.backward(model(x))
    mechanism = Mechanism(100, 4, 3, 1.0, clipper.thresholds, 1e-3)
    if len(clipper.groups) == 1:
        with pytest.raises(RuntimeError, match="broke off"):
            mechanism.noise(b"key", clipper).privatise_(0)
    clipper.reset()
    clear(model)
    clipper.backward(model(x))
    for name, grad in grads_of(model).items():
        torch.testing.assert_close(grad, expected[name])


@pytest.mark.parametrize("put", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("style", STYLES)
def test_hooks_on_gradients_are_refused_in_every_batch(style, put):
    """Sums that autograd forms go through them: 141 times the threshold with four records."""
    model, x = Changing(), 100 * torch.randn(4, 2, 3)
    clipper = make_clipper(model, style, threshold=1e-3)
    clipper.backward(model(x))
    name, parameter = next(iter(model.named_parameters()))

    def grow(seen):
        with torch.no_grad():
            grad = seen if put == "register_hook" else seen.grad
            grad.mul_(141)

    handle = getattr(parameter, put)(grow)
    with pytest.raises(UnsupportedLayerError, match=f"parameter '{name}' has a hook"):
        clipper.backward(model(x))
    handle.remove()
    clear(model)
    clipper.backward(model(x))
    assert math.sqrt(sum(g.square().sum().item() for g in grads_of(model).values())) <= 4.1e-3


def _on_output(change):
    return lambda module, args, out: out.register_hook(change) and None


LATER_HOOKS = {
    "an output's gradient grows": lambda m: m.register_forward_hook(_on_output(lambda g: 141 * g)),
    "an output's gradients are averaged": lambda m: m.register_forward_hook(
        _on_output(lambda g: g.mean(0, keepdim=True).expand_as(g))
    ),
    "a module's gradients are averaged": lambda m: m.register_full_backward_pre_hook(
        lambda module, g: (g[0].mean(0, keepdim=True).expand_as(g[0]),)
    ),
}


@pytest.mark.parametrize("hook", LATER_HOOKS)
@pytest.mark.parametrize("style", STYLES)
def test_hooks_on_modules_that_come_later_are_found(style, hook):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    for layer in (model[2], model[4]):
        clipper = make_clipper(model, style, threshold=0.1)
        for _ in range(2):
            clipper.backward(F.cross_entropy(model(x), y, reduction="none"))
        handle = LATER_HOOKS[hook](layer)
        with pytest.raises(UnsupportedLayerError):
            clipper.backward(F.cross_entropy(model(x), y, reduction="none"))
        handle.remove()
        clipper.close()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("trained", [True, False])
def test_a_lookup_that_renormalises_its_table_is_refused(kind, trained):
    """The table would tell what was looked up, without noise, also of a table that is frozen."""
    model = nn.Sequential(kind(5, 3, max_norm=1.0), nn.Linear(3, 1)).double()
    model[0].requires_grad_(trained)
    with pytest.raises(UnsupportedLayerError, match="max_norm"):
        make_clipper(model, "bk", threshold=1.0)


@pytest.mark.parametrize("style", ["bk", "ghost", "lee_kifer"])
def test_a_hook_that_acts_on_rare_values_does_not_let_a_record_through(style):
    """Autograd's gradient has its factor of 100, the captured one has not; no check looks on."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda module, args, out: out.where(out.abs() <= 5, out * 100))
    model[1].requires_grad_(False)
    clipper = make_clipper(model, style, threshold=1.0)
    for _ in range(2):  # the checks that are due
        clear(model)
        clipper.backward(model(torch.randn(8, 4)).squeeze(1))
    x = torch.randn(8, 4) * 0.5
    other = x.clone()
    other[0] = 40.0
    sums = []
    for batch in (x, other):
        clear(model)
        clipper.backward(model(batch).squeeze(1))
        sums.append(torch.cat([g.flatten() for g in grads_of(model).values()]))
    assert float((sums[0] - sums[1]).norm()) < 2.00001


class Forgetful(nn.Module):
    """Its checkpointed layer has another dropout mask each time that it is computed again."""

    def __init__(self, keeps_state):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 1, bias=False), nn.Dropout(0.5)
        self.keeps_state = keeps_state

    def forward(self, x):
        def layer(y):
            return self.linear(self.drop(y))

        return checkpoint(layer, x, use_reentrant=False, preserve_rng_state=self.keeps_state)


@pytest.mark.parametrize("style", ["bk", "ghost", "lee_kifer"])
@pytest.mark.parametrize("keeps_state", [True, False])
def test_inputs_that_are_computed_again_otherwise_let_no_record_through(style, keeps_state):
    torch.manual_seed(0)
    model = Forgetful(keeps_state).train()
    clipper = make_clipper(model, style, threshold=1.0)
    largest, refused = 0.0, []
    for step in range(20):
        clear(model)
        x = torch.zeros(1, 4)
        x[0, step % 4], x[0, (step + 1) % 4] = 1000.0, 0.1
        try:
            clipper.backward(model(x.requires_grad_()).squeeze(1))
        except UnsupportedLayerError as error:
            refused.append(str(error))
            clipper.reset()
            continue
        grad = model.linear.weight.grad
        largest = max(largest, 0.0 if grad is None else float(grad.norm()))
    assert largest < 1.00001
    assert bool(refused) is (not keeps_state and style != "bk")
    assert all("preserve_rng_state=False" in said for said in refused)


@pytest.mark.parametrize("style", ["bk", "ghost", "lee_kifer", "flat"])
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("small", ["a", "g"])
def test_squares_that_underflow_do_not_hide_a_gradient(style, positions, small):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 1, bias=False)

        def forward(self, x, w):
            return (self.linear(x) * w).sum((1, 2))

    model = Weighted()
    clipper = make_clipper(model, style, threshold=1e-3)
    one = torch.ones(2, positions, 1)
    clipper.backward(model(torch.randn(2, positions, 64), one))
    clear(model)
    x, w = (1e-23, 1e19) if small == "a" else (1e17, 1e-23)
    clipper.backward(
        model(torch.full((2, positions, 64), x), w * one * torch.tensor([1.0, 0])[:, None, None])
    )
    assert float(model.linear.weight.grad.double().norm()) <= 1e-3 * 1.00001


def test_a_batch_that_is_checked_holds_few_output_gradients(monkeypatch):
    """All of them at once would be more than the activations of a batch that is not."""
    torch.manual_seed(0)
    layers = [part for _ in range(12) for part in (nn.Linear(8, 8), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(4, 50, 8)
    clipper = make_clipper(model, "bk", threshold=1.0)
    seen, most = [], []

    def spy(call, g, *rest):
        seen.append(TensorWeakRef(g))
        most.append(sum(one() is not None for one in seen))
        return uses_of(call, g, *rest)

    monkeypatch.setattr("dpft.privacy.clipping.checks.verify.uses_of", spy)
    clipper.backward(model(x).square().mean((1, 2)))
    assert len(most) == 12
    assert max(most) <= 3


def test_a_leaf_below_the_layers_keeps_no_output_gradients_alive(monkeypatch):
    """Such as the output of frozen embeddings under activation checkpointing."""
    torch.manual_seed(0)
    layers = [part for _ in range(12) for part in (nn.Linear(8, 8), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(4, 50, 8, requires_grad=True)
    clipper = make_clipper(model, "per_layer", threshold=1.0)
    seen, most = [], []

    def spy(call, g, *rest):
        seen.append(TensorWeakRef(g))
        most.append(sum(one() is not None for one in seen))
        return uses_of(call, g, *rest)

    monkeypatch.setattr("dpft.privacy.clipping.plans.batch.uses_of", spy)
    clipper.backward(model(x).square().mean((1, 2)))
    assert len(most) == 12
    assert max(most) <= 3
    assert x.grad is None


def test_fixed_thresholds_do_not_move():
    clipper = make_clipper(nn.Linear(3, 2), "per_layer", threshold=1.0)
    with pytest.raises(ValueError, match="are fixed"):
        clipper.move([1e-6])
    assert clipper.sensitivity == pytest.approx(1.0)


@pytest.mark.parametrize("style", STYLES)
def test_losses_that_depend_on_nothing_are_refused(style):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    clipper = make_clipper(model, style, threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match="neither detached nor constant"):
        clipper.backward(model(x).sum(1).detach())
