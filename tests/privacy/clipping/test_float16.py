"""Layers in float16, and losses that are scaled for them: same mechanism, no record left long."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.clipping.scaling import check_scale, unscaled
from tests.privacy.reference import clear, grads_of
from tests.privacy.small_models import Case, build, causal_losses, class_losses, shaken

C, SCALE = 0.05, 1024.0
STYLES = ("bk", "flat", "ghost", "lee_kifer", "per_layer")
# What is left of rounding is float32's: norms and sums are of the same numbers.
FLOAT32 = 1e-5


def flat(model):
    return torch.cat([g.flatten().double() for g in grads_of(model).values()])


class Gain(nn.Module):
    """No rule knows it: its gradients come from computing it again; one is a number."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.randn(width))
        self.level = nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.gain * x.sin() * self.level


class Mixture(nn.Module):
    """Every kind of use: a lookup, products, a scale of a norm, and one that is computed again."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.layers = nn.Sequential(
            nn.Linear(8, 8), Gain(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 6)
        )

    def forward(self, ids, factors):
        return self.layers(self.embed(ids) * factors[:, None, None]).mean(1)


def mixture(tied):
    data = {"ids": torch.randint(5, (4, 3)), "factors": torch.randn(4).double()}
    data["labels"] = torch.tensor([0, 5, 1, 2])
    return Case(shaken(Mixture()), data, class_losses)


@pytest.mark.parametrize(
    ("name", "style"), [("gpt2", "bk"), *(("mixture", style) for style in (*STYLES, "none"))]
)
def test_a_scale_changes_no_digit_of_the_mechanism(name, style):
    """The factor of appendix T on loss, threshold and noise: what is released is the same."""
    found = []
    for scale in (1.0, SCALE):
        torch.manual_seed(0)
        case = mixture(True) if name == "mixture" else build(name)
        threshold = None if style == "none" else C
        clipper = make_clipper(case.model, style, threshold=threshold, loss_scale=scale)
        for _ in range(2):  # the first is checked against autograd; sums of two are added up
            clipper.backward(case.all_losses())
        assert clipper.sensitivity == (math.inf if style == "none" else pytest.approx(C))
        found.append((clipper.norms, flat(case.model)))
    (norms, sums), (scaled_norms, scaled_sums) = found
    assert torch.equal(norms, scaled_norms)
    if style in ("ghost", "lee_kifer"):  # where nothing is scaled autograd forms the sum
        torch.testing.assert_close(sums, scaled_sums, rtol=1e-10, atol=1e-12)
    else:
        assert torch.equal(sums, scaled_sums)


@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer"])
@pytest.mark.parametrize("name", ["gpt2", "roberta_classifier"])
def test_a_model_in_float16_is_clipped_to_its_threshold(name, style):
    """Each record alone is as long as the threshold, and no longer; all of them are near float64's.

    11 bits, of every product on the way: a thousandth or two of the whole.
    """
    losses_of = causal_losses if name == "gpt2" else class_losses
    case = build(name)
    exact = make_clipper(case.model, style, threshold=C)
    exact.backward(case.all_losses())
    norms, expected = exact.norms, flat(case.model)
    exact.close()
    model = case.model.float()
    clipper = make_clipper(model, style, threshold=C, loss_scale=SCALE)

    def clipped(rows):
        clear(model)
        with torch.autocast("cpu", torch.float16):
            losses = losses_of(model, case.rows(rows))
        clipper.backward(losses.float())
        return flat(model)

    alone = torch.stack([clipped(slice(i, i + 1)) for i in range(case.batch)])
    assert (alone.norm(dim=1) <= C * (1 + FLOAT32)).all()
    assert (alone.norm(dim=1) > 0.99 * C).all()
    together = clipped(slice(None))
    torch.testing.assert_close(clipper.norms.double(), norms, rtol=5e-3, atol=0.0)
    assert (together - expected).norm() < 5e-3 * expected.norm()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    inputs=st.tuples(*[st.sampled_from([-30, -14, -3, 0, 3, 14, 17])] * 4),
    losses=st.tuples(*[st.sampled_from([-40, -24, -8, 0, 6, 20])] * 4),
    scale=st.sampled_from([2.0, SCALE, 2.0**24]),
    style=st.sampled_from(STYLES),
)
def test_no_record_exceeds_its_threshold_whatever_over_and_underflows(
    seed, inputs, losses, scale, style
):
    """Inputs and losses of all magnitudes: some records vanish, some overflow and are left out."""
    torch.manual_seed(seed)
    model = Mixture()
    clipper = make_clipper(model, style, threshold=C, loss_scale=scale)
    ids, labels = torch.randint(5, (4, 3)), torch.randint(6, (4,))
    factors, weights = (2.0 ** torch.tensor(x, dtype=torch.float32) for x in (inputs, losses))

    def clipped(rows):
        clear(model)
        with torch.autocast("cpu", torch.float16):
            logits = model(ids[rows], factors[rows])
            found = nn.functional.cross_entropy(logits.float(), labels[rows], reduction="none")
        clipper.backward(found * weights[rows])
        return flat(model)

    alone = []
    for i in range(4):
        alone.append(clipped(slice(i, i + 1)))
        length = alone[-1].norm()
        assert length <= C * (1 + FLOAT32)
        if bool((clipper.factors == 0).all()):
            assert length == 0
    together = clipped(slice(None))
    # Products in float16 are rounded otherwise in another batch.
    assert (together - torch.stack(alone).sum(0)).norm() <= 2e-2 * 4 * C


@pytest.mark.parametrize("style", STYLES)
def test_a_record_that_overflows_is_left_out_and_no_other(style):
    """Left out by its own numbers: the step is taken, and the others' sum is what it was."""
    torch.manual_seed(0)
    model = Mixture()
    clipper = make_clipper(model, style, threshold=C, loss_scale=2.0**15)
    ids, labels = torch.randint(5, (4, 3)), torch.randint(6, (4,))

    def clipped(weights):
        clear(model)
        with torch.autocast("cpu", torch.float16):
            logits = model(ids, torch.ones(4))
            losses = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        clipper.backward(losses * torch.tensor(weights))
        return flat(model), clipper.factors

    sums, factors = clipped([1.0, 1.0, 1000.0, 1.0])  # whose gradient is beyond 65504, scaled
    assert (factors[2] == 0).any()
    assert (factors[[0, 1, 3]] > 0).all()
    silent, factors = clipped([1.0, 1.0, 0.0, 1.0])
    if style != "per_layer":  # there it is left out of the groups that it overflows in
        assert torch.equal(sums, silent)
    assert (sums - silent).norm() <= C * (1 + FLOAT32)


def test_what_would_vanish_without_a_scale_does_not():
    case = build("gpt2")
    case.all_losses().sum().backward()
    exact = 1e-8 * float(flat(case.model).norm())
    model = case.model.float()
    lengths = {}
    for scale in (1.0, 2.0**15):
        clipper = make_clipper(model, "bk", threshold=1.0, loss_scale=scale)
        clear(model)
        with torch.autocast("cpu", torch.float16):
            losses = 1e-8 * causal_losses(model, case.data).float()
        clipper.backward(losses)
        lengths[scale] = float(flat(model).norm())
        clipper.close()
    assert lengths[1.0] == 0.0
    assert lengths[2.0**15] == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 1000.0, 2.0**25, math.inf, math.nan])
def test_a_scale_that_rounds_is_refused(scale):
    with pytest.raises(ValueError, match="power of two"):
        check_scale(scale)


def test_dividing_by_the_scale_changes_no_digit_of_any_float16():
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    every = every[every.isfinite()]
    for scale in (2.0, SCALE, 2.0**24):
        found = unscaled(every, scale)
        assert found.dtype == torch.float32
        assert torch.equal(found.double() * scale, every.double())


def test_a_part_of_a_model_takes_no_scale():
    model = nn.Sequential(nn.Linear(2, 2))
    clipper = make_clipper(model, "bk", threshold=C, loss_scale=2.0)
    with pytest.raises(UnsupportedLayerError, match="loss_scale is 2"):
        clipper.for_part(model[0], ())


def test_a_wrong_rule_is_seen_in_float16():
    """Autograd's own sums are in float16 there: the comparison leaves them room."""

    class Tripled(nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    from dpft.privacy.clipping.rules import RULES

    (linear,) = (rule for name, rule in RULES.items() if name.endswith("linear.Linear"))
    name = f"{Tripled.__module__}.{Tripled.__qualname__}"
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Tripled(8, 3))
    for size in (1e-4, 4.0):
        clipper = make_clipper(model, "bk", threshold=C, rules={name: linear}, loss_scale=SCALE)
        with torch.autocast("cpu", torch.float16):
            losses = size * model(torch.randn(64, 6)).float().square().sum(1)
        with pytest.raises(UnsupportedLayerError, match=r"2\.(weight|bias)"):
            clipper.backward(losses)
        clipper.close()
