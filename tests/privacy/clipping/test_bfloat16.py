"""Sums of layers in bfloat16: no record adds more than its threshold, whatever is rounded."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dpft.privacy import UnsupportedLayerError, make_clipper, precision
from dpft.privacy.clipping import CLIP_FUNCTIONS
from dpft.privacy.clipping import clipper as clippers
from dpft.privacy.clipping.rules import RULES, MatrixUse
from tests.privacy.reference import clear, grads_of, program_of
from tests.privacy.small_models import build, causal_losses, class_losses

# What is left of rounding is float32's: of norms, factors, and the sums of exact products.
FLOAT32 = 1e-5


def by_itself(use, weights):
    """Return what each record adds, from the numbers that are multiplied, summed in float64."""
    left, right = use._weighted(weights)
    return torch.bmm(left.double().transpose(1, 2), right.double())


def check(a, g, threshold, transposed=False, function="abadi"):
    """No record is longer than the threshold, and none is further from what it should be."""
    use = MatrixUse(a, g, transposed)
    norm = use.squared_norm()
    true = torch.bmm(use.left.double().transpose(1, 2), use.right.double())
    if not bool(norm.sound().all()):  # the clipper has these computed again
        norm = norm._replace(value=true.flatten(1).norm(dim=1).square().float())
    length = norm.allowing().sqrt()
    c = CLIP_FUNCTIONS[function](length, threshold)
    added = by_itself(use, c).flatten(1)
    assert (added.norm(dim=1) <= threshold * (1 + FLOAT32)).all()
    kept = torch.where(c < precision.SMALLEST, 0.0, c.double())
    apart = (added - kept[:, None] * true.flatten(1)).norm(dim=1)
    allowed = kept * norm.rounding.double().sqrt()  # of a norm beyond float32: 0 times infinity
    assert (apart <= allowed.nan_to_num(0.0) + 1e-12 * threshold).all()
    return added.norm(dim=1)


def numbers(generator, shape, exponents):
    """Numbers in bfloat16 of all magnitudes between two powers of two, some of them zero."""
    low, high = exponents
    size = torch.empty(shape).uniform_(low, high, generator=generator)
    sign = torch.randint(-1, 2, shape, generator=generator)
    return (sign * torch.exp2(size)).bfloat16()


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    length=st.sampled_from([1, 2, 3, 17]),
    inputs=st.sampled_from([(-3, 3), (-30, 20), (-110, -60), (-126, -120), (-60, 60)]),
    gradients=st.sampled_from([(-3, 3), (-30, 20), (-40, -20), (-60, 60)]),
    share=st.sampled_from([1e-20, 1e-6, 0.3, 0.999, 1.0, 1.001, 3.0, 1e6]),
    transposed=st.booleans(),
    function=st.sampled_from(sorted(CLIP_FUNCTIONS)),
)
def test_no_record_exceeds_its_threshold(
    seed, length, inputs, gradients, share, transposed, function
):
    """Whatever the magnitudes, also of subnormal numbers; with factors near 1 and far from it."""
    generator = torch.Generator().manual_seed(seed)
    a = numbers(generator, (4, length, 5), inputs)
    g = numbers(generator, (4, length, 3), gradients)
    sizes = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
    middle = float(sizes.sort().values[2])
    threshold = min(max(share * middle, 1e-12), 1e12)
    check(a, g, threshold, transposed, function)


def test_roundings_that_all_go_one_way_stay_below_the_threshold(monkeypatch):
    """Equal positions: with some thresholds every number is rounded away from zero."""
    a, g = torch.ones(3, 9, 4).bfloat16(), torch.ones(3, 9, 3).bfloat16()
    thresholds = torch.linspace(5.0, 10.0, 50).tolist()
    for threshold in thresholds:
        check(a, g, threshold)
    # Without the allowance a record would exceed its own.
    monkeypatch.setattr(precision, "_UNIT", 0.0)
    broken = 0
    for threshold in thresholds:
        use = MatrixUse(a, g)
        added = by_itself(use, threshold / use.squared_norm().allowing().sqrt())
        broken += bool((added.flatten(1).norm(dim=1) > threshold * (1 + 2**-9)).any())
    assert broken > 5


STYLES = ("bk", "materialised", "ghost", "lee_kifer", "per_layer")


@pytest.mark.parametrize(
    ("style", "way"),
    [
        *((style, "eager") for style in STYLES),
        *((style, "one look at the end") for style in ("ghost", "per_layer")),
        *((style, "program") for style in ("bk", "ghost", "per_layer")),
    ],
)
@pytest.mark.parametrize("name", ["gpt2", "roberta_classifier"])
def test_a_model_under_autocast_is_clipped_within_the_bound(name, style, way, monkeypatch):
    """Each record by itself, and the records together are the sum of what each is; also on a
    device for which the host waits, and looks at no norm before the end."""
    monkeypatch.setattr(clippers, "waits", lambda device: way == "one look at the end")
    case, threshold, own = build(name), 0.05, causal_losses if name == "gpt2" else class_losses
    model = case.model.float()

    def rounded(model, data):
        with torch.autocast("cpu", torch.bfloat16):
            return own(model, data).float()

    clipper, case.losses = make_clipper(model, style, threshold=threshold), rounded
    records = torch.arange(case.batch)
    if way == "program":  # each record among rows of padding, in the shape that all are computed in
        program = program_of(clipper, case, weights=records >= 0)

    def clipped(rows):
        if way == "program":
            sums = program([*case.data.values()], torch.isin(records, rows)).sums
        else:
            clear(model)
            clipper.backward(case.losses_of(rows))
            sums = grads_of(model).values()
        return torch.cat([g.flatten().double() for g in sums])

    alone = torch.stack([clipped(records[i : i + 1]) for i in records])
    lengths = alone.norm(dim=1)
    assert (lengths <= threshold * (1 + FLOAT32)).all()
    assert (lengths > 0.95 * threshold).all()
    # Products in bfloat16 are rounded otherwise in another batch: half a percent of each record.
    apart = 1e-4 if way == "program" else 2e-2
    assert (clipped(records) - alone.sum(0)).norm() < apart * threshold * case.batch


# Frozen layers in bfloat16 below adapters in float32 are the usual way to save memory, and there no
# trained layer's input or output gradient is in half precision itself.
C = 0.01


class Adapted(nn.Module):
    """A frozen layer in bfloat16, and two trained ones in float32 next to it."""

    def __init__(self, inputs, outputs, type_of_b=nn.Linear):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).bfloat16().requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, 4, bias=False), type_of_b(4, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x.float())).bfloat16()


class Classifier(nn.Module):
    """Two of those, and a frozen head in bfloat16, whose logits are in bfloat16 too."""

    def __init__(self, type_of_b=nn.Linear):
        super().__init__()
        self.first, self.second = Adapted(16, 32), Adapted(32, 16, type_of_b)
        self.head = nn.Linear(16, 10).bfloat16().requires_grad_(False)

    def forward(self, x):
        return self.head(self.second(F.gelu(self.first(x.bfloat16()))))


def size(model):
    return math.sqrt(sum(g.double().square().sum().item() for g in grads_of(model).values()))


def losses_of(logits, dtype, first=0):
    labels = (first + torch.arange(len(logits))) % logits.shape[1]
    return F.cross_entropy(logits.to(dtype), labels, reduction="none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("style", STYLES)
def test_adapters_above_a_rounded_model_are_clipped_exactly(style, dtype):
    torch.manual_seed(0)
    model = Classifier()
    clipper = make_clipper(model, style, threshold=C)
    for i in range(40):
        clear(model)
        clipper.backward(losses_of(model(3 * torch.randn(1, 16)), dtype, first=i))
        assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
        assert 0.999 * C < size(model) <= C * (1 + 1e-6)


class Tripled(nn.Linear):
    """Not what its type's rule says."""

    def forward(self, x):
        return 3 * F.linear(x, self.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_rule_is_seen_above_a_rounded_model(dtype):
    model = Classifier(type_of_b=Tripled)
    (linear,) = (rule for name, rule in RULES.items() if name.endswith("linear.Linear"))
    rules = {f"{Tripled.__module__}.{Tripled.__qualname__}": linear}
    clipper = make_clipper(model, "bk", threshold=C, rules=rules)
    with pytest.raises(UnsupportedLayerError, match=r"second\.b\.weight"):
        clipper.backward(losses_of(model(torch.randn(4, 16)), dtype))
