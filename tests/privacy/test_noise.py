"""The noise is there, of the right scale, independent everywhere, and fresh at every step."""

import itertools
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import dpft.privacy as privacy
from dpft.privacy import Mechanism, keys, make_clipper, noise
from dpft.privacy.clipping.groups import Group
from dpft.privacy.mechanism import allocate
from dpft.privacy.noise import Released, Slice, noisy_means_
from dpft.privacy.normals import normals
from dpft.privacy.policies import QuantileThresholds, ThresholdPolicy
from dpft.privacy.quantiles import Quantiles

SIZE = 40_000


def mechanism(sigma=1.7, threshold=0.1, batch_size=64, steps=5):
    return Mechanism(1000, batch_size, steps, sigma, (threshold,), 1e-5)


class Sums:
    """What noise asks of a clipper, without a model: sums in ``.grad``, groups, thresholds."""

    unfinished = False
    cohort = None

    def collect(self):
        """Nothing: one process."""

    def own_slice(self, grad):
        return grad.view(-1), 0

    @property
    def sizes(self):
        return {name: parameter.numel() for name, parameter in self.parameters.items()}

    def __init__(self, groups, adaptive=None, sums=None, dtype=torch.float32, shapes=None):
        shapes = shapes or {"a": (SIZE,), "b": (SIZE // 100, 100)}
        self.parameters = {n: nn.Parameter(torch.zeros(s, dtype=dtype)) for n, s in shapes.items()}
        if sums is not None:
            for p in self.parameters.values():
                p.grad = torch.full_like(p, sums)
        self.groups = tuple(groups)
        first = [group.threshold for group in groups]
        self.policy = QuantileThresholds(first, adaptive) if adaptive else ThresholdPolicy(first)

    def gradients(self):
        return {name: p.grad.flatten() for name, p in self.parameters.items()}


def flat(threshold):
    return [Group("all", ("a", "b"), threshold)]


def draw(step, key=b"key", mech=None, sums=0.0):
    mech = mech or mechanism()
    clipper = Sums(flat(mech.thresholds[0]) if mech.thresholds else (), sums=sums)
    assert mech.noise(key, clipper).privatise_(step) == Released()
    return clipper.gradients()


def correlation(x, y):
    return torch.corrcoef(torch.stack([x, y]))[0, 1].item()


def test_an_empty_batch_is_a_noise_only_step():
    clipper = Sums(flat(0.1))
    mechanism().noise(b"key", clipper).privatise_(0)
    expected = draw(0)
    for name, grad in clipper.gradients().items():
        assert torch.equal(grad, expected[name])


def test_without_noise_the_gradient_is_the_mean():
    none = Mechanism(1000, 64, 5, 0.0, (), 1e-5)
    assert allocate("equal_budget", 0.0, (1.0, 2.0)) == (0.0, 0.0)
    assert torch.allclose(draw(0, mech=none, sums=64.0)["a"], torch.ones(SIZE))


@pytest.mark.parametrize(("sigma", "threshold", "batch_size"), [(1.7, 0.1, 50), (0.6, 3.0, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_the_normals_of_key_step_and_name_times_sigma_and_threshold(
    dtype, sigma, threshold, batch_size
):
    """Runs that exist replay: rounded once, over the expected batch."""
    z = normals(keys.derive(b"key", "noise", 3, "b"), 0, SIZE).numpy()
    clipper = Sums(flat(threshold), sums=0.25, dtype=dtype)
    mechanism(sigma, threshold, batch_size).noise(b"key", clipper).privatise_(3)
    std = sigma * math.sqrt(threshold * threshold)
    expected = torch.from_numpy((0.25 + std * z) * (1 / batch_size)).to(dtype)
    assert torch.equal(clipper.gradients()["b"], expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_slices_of_a_parameter_get_the_noise_of_the_whole(dtype):
    """Whoever holds which, and wherever they are cut."""
    key = keys.derive(b"key", "noise", 0, "a")
    whole = torch.linspace(-1, 1, 150_001).to(dtype)
    pieces = [piece.clone() for piece in whole.split([0, 1, 1023, 2, 66_000, 70_000, 12_975])]
    noisy_means_([Slice(whole, key, 0.3)], 7)
    firsts = [0, *itertools.accumulate(map(len, pieces))]
    noisy_means_([Slice(piece, key, 0.3, firsts[i]) for i, piece in enumerate(pieces)], 7)
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("fault", [None, "gives other bits", "could not be made"])
def test_a_kernel_is_used_where_it_gives_the_bits_of_the_cpu(monkeypatch, fault):
    def one_pass(slices, scale):
        if fault == "could not be made":
            raise OSError("no compiler")
        noise.on_cpu(slices, scale)
        if fault:
            last = slices[-1].sums[-1:]
            last.copy_(last.nextafter(torch.ones(1)))

    kernels = SimpleNamespace(noisy_means_=one_pass)
    monkeypatch.setitem(sys.modules, "dpft.privacy.fused", kernels)
    monkeypatch.setattr(privacy, "fused", kernels, raising=False)
    # No GPU here: what is asked of one is computed on the CPU.
    monkeypatch.setattr(torch.Tensor, "to", lambda x, device: x.clone())
    chosen, cuda = noise._kernel.__wrapped__, torch.device("cuda")
    with pytest.warns(UserWarning, match=fault) if fault else nullcontext():
        assert chosen(cuda, torch.float32) is (None if fault else one_pass)
    assert chosen(cuda, torch.bfloat16) is None
    assert chosen(torch.device("cpu"), torch.float32) is None


def test_noise_falls_to_places_not_to_memory():
    """A gradient that lies in memory column by column has the noise of one that lies row by row."""
    found = []
    for grad in (torch.zeros(70, 300).T, torch.zeros(300, 70)):
        clipper = Sums([Group("all", ("a",), 0.1)], shapes={"a": (300, 70)})
        clipper.parameters["a"].grad = grad
        mechanism().noise(b"key", clipper).privatise_(0)
        found.append(clipper.parameters["a"].grad)
    assert torch.equal(*found)


K = 500


def adaptive(sigma_b=3.0, B=50, quantiles=Quantiles(0.7), groups=K, **further):  # noqa: B008
    clipper = Sums(
        [Group(f"g{k}", (f"p{k}",), 0.5) for k in range(groups)],
        quantiles,
        shapes={f"p{k}": (1,) for k in range(groups)},
    )
    mech = Mechanism(
        *(1000, B, 5, 1.0, (0.5,) * groups, 1e-5),
        quantiles=quantiles,
        count_noise=sigma_b,
        **further,
    )
    return mech, clipper


def test_counts_have_the_stated_noise():
    """Fails if their noise is dropped, halved, or added after the division by the batch size."""
    mech, clipper = adaptive(sigma_b=3.0, B=50)
    noise = mech.noise(b"key", clipper)
    streams = []
    for step in range(3):
        clipper.policy.below = torch.full((K,), 7.5, dtype=torch.float64)
        released = noise.privatise_(step)
        draws = (np.array(released.fractions) - 0.5) * 50 - 7.5
        assert draws.std() == pytest.approx(3.0, rel=5 / math.sqrt(2 * K))
        assert abs(draws.mean()) < 5 * 3.0 / math.sqrt(K)
        streams += [torch.from_numpy(draws)]
        streams += [torch.cat([p.grad for p in clipper.parameters.values()]).double()]
        for p in clipper.parameters.values():
            p.grad = None
    for x, y in itertools.combinations(streams, 2):  # of counts and gradients, at every step
        assert abs(correlation(x, y)) < 5 / math.sqrt(K)


def test_no_word_is_used_twice(monkeypatch):
    """By parameters, counts and batches of all steps; a word used twice cancels in a difference."""
    asked, words = set(), keys.words

    def recorded(key, start, stop):
        wanted = {(key, i) for i in range(start, stop)}
        assert not wanted & asked
        asked.update(wanted)
        return words(key, start, stop)

    shapes = {"p0": (3,), "p1": (150_000,)}
    quantiles = Quantiles(0.5)
    groups = [Group(name, (name,), 0.5) for name in shapes]
    mech = Mechanism(*(1000, 50, 3, 1.0, (0.5, 0.5), 1e-5), quantiles=quantiles, count_noise=3.0)
    noise = mech.noise(b"key", Sums(groups, quantiles, shapes=shapes))
    sampler = mech.sampler(b"key")
    noise.privatise_(0)  # past the check of the machine
    monkeypatch.setattr(keys, "words", recorded)
    for step in range(1, 3):
        sampler.batch(step)
        noise.privatise_(step)
    assert len(asked) == 2 * (1000 + 1024 + 147 * 1024 + 1024)


@pytest.mark.parametrize("steps", [(-1,), (5,), (0, 0), (3, 2)])
def test_a_step_is_released_once_and_none_that_is_not_accounted_for(steps):
    """Two releases of one step have the same noise: their difference has none."""
    noise = mechanism(steps=5).noise(b"key", Sums(flat(0.1), sums=0.0))
    for step in steps[:-1]:
        noise.privatise_(step)
    with pytest.raises(ValueError, match="step is"):
        noise.privatise_(steps[-1])


def test_thresholds_move_for_the_next_step_only():
    """The noise is scaled to what the step was clipped with, and the counters start again."""
    mech, clipper = adaptive(sigma_b=1e-9, B=50, groups=2, quantiles=Quantiles(0.7, 0.3, rescale=2))
    before = clipper.policy.thresholds
    clipper.policy.below = torch.tensor([25.0, -25.0], dtype=torch.float64)
    released = mech.noise(b"key", clipper).privatise_(0)
    assert released.thresholds == before
    assert released.fractions == pytest.approx((1.0, 0.0), abs=1e-7)
    expected = (0.5 * math.exp(-0.3 * 0.3), 0.5 * math.exp(0.3 * 0.7))
    assert clipper.policy.estimates == pytest.approx(expected, rel=1e-7)
    assert math.hypot(*clipper.policy.thresholds) == pytest.approx(2.0)
    assert clipper.policy.below.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("allocation", ["global", "weighted"])
def test_each_group_has_noise_of_the_scale_of_its_threshold_in_force(allocation):
    """One key draws the same numbers, times what Algorithm 1 states (He et al. 2022, line 13)."""
    drawn = []
    for thresholds in ((0.5, 0.5), (0.25, 3.0)):
        mech, clipper = adaptive(sigma_b=1e-9, groups=2, allocation=allocation, dimensions=(1, 1))
        clipper.policy.move(thresholds)
        mech.noise(b"key", clipper).privatise_(0)
        stds = mech.noise_stds(thresholds)
        drawn.append(
            [p.grad.item() / s for p, s in zip(clipper.parameters.values(), stds, strict=True)]
        )
    assert drawn[0] == pytest.approx(drawn[1], rel=1e-6)


def test_noise_refuses_what_it_is_not_accounted_for():
    mech, clipper = adaptive(groups=2)
    fixed = Mechanism(1000, 50, 5, 1.0, (0.5, 0.5), 1e-5)
    fixed_sums = Sums(clipper.groups, shapes={"p0": (1,), "p1": (1,)})
    moved = Sums([Group("x", ("a",), 0.5), Group("y", ("b",), 0.5)])
    moved.policy = ThresholdPolicy((0.5, 0.1))
    twice = [Group("x", ("a",), 0.5), Group("y", ("a",), 0.5)]
    two = [Group("first", ("a",), 0.3), Group("second", ("b",), 2.0)]
    sized = Mechanism(1000, 50, 5, 1.0, (0.3, 2.0), 1e-5, dimensions=(1, 2))
    for mechanism_, sums, differs in (
        (mechanism(threshold=0.1), Sums(flat(0.5)), "first thresholds"),
        (fixed, clipper, "rule of adaptive thresholds"),
        (mech, fixed_sums, "rule of adaptive thresholds"),
        (fixed, moved, "thresholds"),
        (
            mech,
            Sums(clipper.groups, clipper.policy.rule, shapes={"p0": (1,)}),
            "parameters in groups",
        ),
        (fixed, Sums(twice, shapes={"a": (1,)}), "parameters in groups"),
        (sized, Sums(two), "sizes of groups"),
    ):
        with pytest.raises(ValueError, match=f"the clipper's {differs} .* differ from"):
            mechanism_.noise(b"key", sums)
    clipper.policy.move((0.1, 0.9))  # as a resumed one
    mech.noise(b"key", clipper)


@pytest.mark.parametrize(
    ("allocation", "style", "rescale"),
    [
        ("global", "materialised", None),
        ("equal_budget", "per_layer", None),
        ("weighted", "per_param", 1.0),
        ("global", "per_layer", 1.0),
        ("global", "ghost", None),
        ("weighted", "bk", None),
        ("equal_budget", "by_type", None),
    ],
)
def test_one_record_moves_the_joint_release_by_no_more_than_is_accounted_for(
    allocation, style, rescale
):
    """Gradients and counts of a real clipper, each over its noise: at most 1/sigma in all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    quantiles = Quantiles(0.5, rescale=rescale)
    clipper = make_clipper(model, style, threshold=0.02, adaptive=quantiles)
    sizes = tuple(sum(clipper.parameters[n].numel() for n in g.parameters) for g in clipper.groups)
    adapting = {"quantiles": quantiles, "quantile_budget": 0.3}
    mech = Mechanism(100, 8, 5, 0.8, (0.02,), 1e-5).over(
        (0.02,) * len(sizes), allocation=allocation, dimensions=sizes, **adapting
    )
    mech.noise(b"key", clipper)  # they agree

    def release(x):
        model.zero_grad()
        clipper.policy.move([0.02 * (1 + k) for k in range(len(sizes))])
        stds = mech.noise_stds(clipper.policy.thresholds)
        clipper.backward(model(x).square().sum(1))
        parts = [
            clipper.parameters[name].grad.flatten() / stds[k]
            for k, group in enumerate(clipper.groups)
            for name in group.parameters
        ]
        return torch.cat([*parts, clipper.policy.below / mech.count_noise])

    x = torch.randn(9, 3, dtype=torch.float64) * torch.logspace(-3, 2, 9)[:, None].double()
    whole = release(x)
    moved = [
        (whole - release(torch.cat([x[:i], x[i + 1 :]]))).norm().item() * 0.8 for i in range(9)
    ]
    assert max(moved) <= 1 + 1e-6
    assert max(moved) == pytest.approx(1, rel=1e-6)  # the bound is met by a large record
    clipper.close()


def test_streams_stay_what_they_are():
    """A run that another version of this code began is replayed with the same batches and noise."""
    assert [x.hex() for x in draw(3)["b"][:3].tolist()] == [
        "0x1.c687240000000p-12",
        "0x1.12dddc0000000p-9",
        "-0x1.2534b40000000p-9",
    ]
    mech, clipper = adaptive(groups=2)
    released = mech.noise(b"key", clipper).privatise_(2)
    assert [x.hex() for x in released.fractions] == ["0x1.289b17c184a79p-1", "0x1.dd8b8018fa56ep-2"]
    assert mechanism().sampler(b"key").batch(3)[:9] == [18, 31, 32, 36, 61, 84, 125, 136, 148]
    shuffled = Mechanism(1000, 64, 5, 1.0, (0.1,), 1e-5, "shuffle").sampler(b"key")
    assert shuffled.batch(3)[:9] == [23, 35, 54, 63, 80, 83, 87, 88, 90]
    assert keys.seed(b"key", "dropout", 3) == 3605885149248885001


def test_labels_that_run_together_are_told_apart():
    streams = {
        keys.derive(b"key", *labels)
        for labels in (
            *(("a", "bc"), ("ab", "c"), ("abc",), ("abc", ""), (1,), ("1",), (11,), (1, 1)),
            *(("a", "b"), ("astr:b",), ("a", 1), ("aint:1",)),
        )
    }
    assert len(streams) == 12


def test_sums_of_a_backward_that_broke_off_get_no_noise():
    """They may hold one record twice, for which the noise would be too small."""
    clipper = Sums(flat(0.1), sums=1.0)
    clipper.unfinished = True
    with pytest.raises(RuntimeError, match="expected a finished batch"):
        mechanism().noise(b"key", clipper).privatise_(0)
    assert all((grad == 1).all() for grad in clipper.gradients().values())
