"""The loop: styles change nothing but speed, and a bad record harms no other."""

import dataclasses
import math

import pytest
import torch

from dpft.config.errors import TrainingError
from dpft.config.schema import Optim, lr_factor
from dpft.parallel.cohort import TrainingCohort
from dpft.privacy import Mechanism, keys, make_clipper, normals
from dpft.privacy.clipping import clipper as clippers
from dpft.privacy.noise import Slice, noisy_means_
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.sampling import FixedShapes, PoissonSampler
from dpft.tasks.objectives.generation import CausalExample, collate, token_nll
from dpft.tasks.units import Records, Users
from dpft.training.loop import train
from dpft.training.setup import make_optimizer
from tests.privacy.clipping.test_clipper import gpt2
from tests.privacy.reference import clip_records, record_gradients

OPTIM = Optim(name="adam", lr=1e-2, batch_size=4, epochs=1, microbatch_tokens=40)
SGD = dataclasses.replace(OPTIM, name="sgd", lr=1.0)
EXAMPLES = [
    CausalExample(
        tuple(1 + (3 * i + j) % 20 for j in range(2 + i % 3)), (1 + i % 7, 9, 1 + i % 5, 0)
    )
    for i in range(16)
]


class TinyObjective:
    def __init__(self, poison=None):
        self.poison = poison

    def collate(self, examples):
        return collate(examples)

    def losses(self, model, batch):
        out = token_nll(model, batch).mean(1)
        if self.poison is not None:
            factors = torch.ones(len(out))
            factors[(batch.tensors["targets"] == 7).any(1)] = self.poison
            out = out * factors
        return out


def run(
    style="bk",
    steps=10,
    *,
    sigma=0.5,
    batch=4,
    slots=0,
    threshold=0.5,
    model=None,
    optimizer=None,
    settings=OPTIM,
    objective=None,
    shapes=None,
    **more,
):
    """Steps on all examples; the model and the clipper in the end, and summaries of the steps."""
    seen, after_step = [], more.pop("after_step", lambda step, statistics: None)

    def after(step, statistics):
        seen.append(statistics.summary())
        after_step(step, statistics)

    model = model or gpt2(dropout=0.1).float()
    threshold, sigma = (None, 0.0) if style == "none" else (threshold, sigma)
    clipper = make_clipper(model, style, threshold=threshold)
    thresholds = tuple(group.threshold for group in clipper.groups)
    mechanism = Mechanism(len(EXAMPLES) + slots, batch, steps, sigma, thresholds[:1], 1e-3)
    train(
        model=model,
        data=Records(objective or TinyObjective(), EXAMPLES, shapes),
        clipper=clipper,
        mechanism=mechanism.over(thresholds),
        optimizer=optimizer or make_optimizer(settings, iter(clipper.parameters.values())),
        settings=settings,
        key=b"key",
        after_step=after,
        **more,
    )
    clipper.close()
    return model, clipper, seen


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_dropout_masks_are_of_one_step_and_one_rank():
    """By the random number that each forward begins with, as its masks would."""
    steps = [set()]

    class Drawing(TinyObjective):
        def losses(self, model, batch):
            steps[-1].add(torch.rand(()).item())
            return super().losses(model, batch)

    for rank in range(2):
        cohort = TrainingCohort()
        cohort.rank, cohort.size = rank, 2
        done = {"after_step": lambda *given: steps.append(set())}
        run(steps=3, batch=16, objective=Drawing(), cohort=cohort, **done)
    assert len(steps) == 6 + 1
    assert len(set().union(*steps)) == sum(map(len, steps)) > 0


@pytest.mark.parametrize(
    ("style", "sigma", "place"), [("bk", 1e-9, "signal"), ("per_layer", 1e4, "noise")]
)
def test_a_watched_step_has_the_norms_of_signal_and_noise(style, sigma, place):
    """Plain SGD at rate 1 moves the weights by whichever of the two is far larger."""
    before, seen = weights(gpt2(dropout=0.1).float()), []
    hooks = {"after_step": lambda step, one: seen.append((one.signal, one.noise))}
    hooks["watched"] = lambda step: step == 0
    once, *_ = run(style, steps=1, sigma=sigma, settings=SGD, **hooks)
    after = weights(once)
    moved = math.sqrt(sum(float((after[n] - before[n]).double().square().sum()) for n in before))
    (pair,) = seen
    found = dict(zip(("signal", "noise"), pair, strict=True))
    assert found[place] == pytest.approx(moved, rel=1e-4 if place == "signal" else 0.03)
    seen.clear()
    run(style, steps=2, settings=SGD, **hooks)
    assert [one is not None for pair in seen for one in pair] == [True, True, False, False]


@pytest.mark.parametrize(
    ("style", "waits", "value"),
    [
        *(("none", False, math.nan), ("bk", False, math.inf)),
        *(("ghost", True, math.nan), ("per_layer", True, math.inf)),
    ],
)
def test_a_record_whose_loss_is_not_finite_is_dropped_and_counted(style, waits, value, monkeypatch):
    """Also on a device for which the host waits: steps start again where it is seen late."""
    monkeypatch.setattr(clippers, "waits", lambda device: waits)
    model, _, seen = run(style, steps=4, objective=TinyObjective(poison=value))
    assert all(torch.isfinite(w).all() for w in weights(model).values())
    assert 0 < sum(one["dropped"] for one in seen) < sum(one["records"] for one in seen)
    found = []
    for poison in (value, 0.0):  # records whose gradients are zero
        model, *_ = run(style, steps=1, model=gpt2().float(), objective=TinyObjective(poison))
        found.append(weights(model))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_units_that_the_mechanism_does_not_count_are_refused():
    with pytest.raises(TrainingError, match="got 16 units; expected 17"):
        run(slots=1)


def test_an_empty_batch_is_a_step_of_noise_alone():
    *_, seen = run(steps=30, batch=1)
    assert len(seen) == 30
    assert any(one["records"] == 0 and one["loss"] is None for one in seen)


def test_noise_reaches_the_weights_at_every_step_and_is_never_repeated():
    """Fails if the loop drops the noise, halves it, or uses one draw for two steps or on resume.

    Noise a thousand times the threshold drowns the gradient, so that plain SGD at rate 1 moves the
    weights by the noise of each step.
    """
    model = gpt2().float()
    places = [torch.cat([w.flatten() for w in weights(model).values()])]

    def after(step, statistics):
        places.append(torch.cat([w.flatten() for w in weights(model).values()]))

    for start, stop in ((0, 2), (2, 4)):  # the second part is a resumed run
        noisy = {"sigma": 1000.0, "threshold": 1e-3, "settings": SGD}
        run(steps=stop, start=start, model=model, after_step=after, **noisy)
    moves = torch.stack(places).diff(dim=0)
    steps, n = moves.shape
    assert steps == 4
    assert moves.std(1).tolist() == pytest.approx([1.0 / 4] * 4, rel=5 / (2 * n) ** 0.5)
    assert (torch.corrcoef(moves) - torch.eye(4)).abs().max() < 5 / n**0.5


@pytest.mark.parametrize(("style", "exact"), [("bk", True), ("none", False)])
def test_private_losses_are_computed_without_tf32(style, exact):
    seen = []

    class Watched(TinyObjective):
        def losses(self, model, batch):
            seen.append(torch.backends.cuda.matmul.fp32_precision)
            return super().losses(model, batch)

    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        run(style, steps=1, objective=Watched())
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert set(seen) == {"ieee" if exact else "tf32"}


def test_a_record_whose_gradient_is_not_finite_is_counted_once():
    class Steep(TinyObjective):
        """The loss is finite."""

        def losses(self, model, batch):
            out = super().losses(model, batch)
            steep = (batch.tensors["targets"] == 7).any(1)
            out[steep] = out[steep] + (out[steep] - out[steep].detach()).sqrt()
            return out

    batch = {"batch": len(EXAMPLES), "model": gpt2().float(), "objective": Steep()}
    _, clipper, seen = run("per_layer", steps=1, **batch)
    steep = sum(7 in example.target for example in EXAMPLES)
    assert 0 < steep == seen[0]["dropped"]
    assert seen[0]["records"] == len(EXAMPLES)
    assert len(seen[0]["clipped"]) == len(clipper.groups)
    assert seen[0]["seconds"] > 0


def test_one_weight_that_is_not_finite_ends_a_private_run():
    model = gpt2().float()

    class Breaks(torch.optim.SGD):
        def step(self):
            with torch.no_grad():
                self.param_groups[0]["params"][-1].view(-1)[0] = math.nan

    with pytest.raises(TrainingError, match="weights are not finite after step 0"):
        run("bk", model=model, optimizer=Breaks(model.parameters(), lr=1.0))


class Observer:
    """An audit of two slots and a reparametrisation in one: notes what is asked of it, and when."""

    def __init__(self, events):
        self.events = events

    def __len__(self):
        return 2

    def insert(self, slots):
        assert all(0 <= slot < 2 for slot in slots)
        self.events.append(f"insert {len(slots)}")

    def observe(self):
        self.events.append("observe")

    def begin(self, step):
        self.events.append(f"begin {step}")

    def transfer(self):
        self.events.append("transfer")


def test_an_audit_sees_each_release_and_new_coordinates_move_once_it_is_counted():
    events, model = [], gpt2().float()
    optimizer = make_optimizer(OPTIM, model.parameters())
    optimizer.register_step_pre_hook(lambda *_: events.append("weights"))
    noted = {"audit": Observer(events), "reparametrisation": Observer(events)}
    noted["spend"] = lambda step, released: events.append(f"spend {step}")
    run(steps=2, batch=len(EXAMPLES) + 2, slots=2, model=model, optimizer=optimizer, **noted)
    each = "begin {0}, insert 2, observe, spend {0}, transfer, weights"
    assert ", ".join(events) == ", ".join(each.format(step) for step in range(2))


class FixedObjective(TinyObjective):
    def collate(self, examples, widths=None):
        return collate(examples, widths)

    def widths(self, example, coarse=False):
        return 16, 4  # losses are averages over the widest target

    def widest(self):
        return 16, 4

    def blank(self):
        return CausalExample((1,), (1,))


def test_cut_batches_of_users_with_moving_thresholds_are_those_of_brute_force():
    """All at once, against a loop: samples, thresholds, counts, and noise."""
    key, (q, eta), lr = b"key", (0.6, 0.3), 0.1
    owners = [f"user {i % 7}" for i in range(len(EXAMPLES))]
    model, other = gpt2(), gpt2()
    clipper = make_clipper(model, "per_layer", threshold=0.5, adaptive=Quantiles(q, eta))
    units = Users(FixedObjective(), EXAMPLES, owners, 2, key, FixedShapes(4, 4))
    plain = Mechanism(7, 4, 4, 0.5, (0.5,), 1e-3, "truncated_poisson", max_batch=4)
    mechanism = plain.over(
        tuple(group.threshold for group in clipper.groups),
        allocation="weighted",  # each group has noise of its own
        dimensions=tuple(sum(clipper.sizes[n] for n in g.parameters) for g in clipper.groups),
        quantiles=clipper.policy.rule,
        quantile_budget=0.1,
    )
    assert mechanism.overflow > 0.4
    assert mechanism.total_noise_multiplier >= 0.5
    train(
        model=model,
        data=units,
        clipper=clipper,
        mechanism=mechanism,
        optimizer=torch.optim.SGD(clipper.parameters.values(), lr=lr),
        settings=dataclasses.replace(OPTIM, lr=lr, schedule="constant", microbatch_tokens=100),
        key=key,
    )
    clipper.close()

    sampler, usual = mechanism.sampler(key), PoissonSampler(mechanism, key)
    estimates = [group.threshold for group in clipper.groups]
    for step in range(mechanism.steps):
        drawn = [i for i in sampler.batch(step) if i >= 0]
        assert set(drawn) <= set(usual.batch(step))

        def loss(j, step=step, drawn=drawn):
            alone = units.batch([drawn[j]], step)
            rows = [
                FixedObjective().losses(other, alone.batch.rows(torch.tensor([row])))[0]
                for row in alone.shares[0].nonzero().flatten().tolist()
            ]
            return sum(rows) / len(rows)

        groups = [group.parameters for group in clipper.groups]
        gradients = record_gradients(other, loss, len(drawn))
        norms, sums = clip_records(
            gradients, groups, lambda k, n, c=tuple(estimates): min(1.0, c[k] / n.item())
        )
        stds = mechanism.noise_stds(estimates)
        draws = normals.normals(keys.derive(key, "quantiles", step), 0, len(groups)).tolist()
        for k, names in enumerate(groups):
            for name in names:
                flat = sums[name].reshape(-1).contiguous()
                noisy_means_([Slice(flat, keys.derive(key, "noise", step, name), stds[k])], 4)
                other.get_parameter(name).data -= lr * flat.view_as(sums[name])
            below = sum((0.5 if n <= estimates[k] else -0.5) for n in norms[:, k].tolist())
            share = 0.5 + (below + mechanism.count_noise * draws[k]) / 4
            estimates[k] *= math.exp(-eta * (share - q))
    assert max(map(len, map(usual.batch, range(4)))) > 4  # some batch was cut
    assert clipper.policy.estimates == pytest.approx(estimates, rel=1e-10)
    assert len(set(stds)) > 1
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-9, atol=1e-10)


def test_padding_changes_neither_the_weights_nor_the_count_of_records():
    found, seen = [], []
    options = {"steps": 1, "sigma": 0.0, "batch": len(EXAMPLES), "settings": SGD}
    options |= {"objective": FixedObjective(poison=math.inf)}
    options["after_step"] = lambda step, statistics: seen.append(statistics)
    for shapes in (None, FixedShapes(64)):
        model, *_ = run("per_layer", model=gpt2(), shapes=shapes, **options)
        found.append(weights(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
    bad = sum(7 in example.target for example in EXAMPLES)
    assert 0 < bad < len(EXAMPLES)
    for one in seen:
        counts = one.records, one.summary()["dropped"], sum(map(len, one.norms))
        assert counts == (len(EXAMPLES), bad, len(EXAMPLES) - bad)


def test_what_is_not_finite_on_another_rank_stops_this_one():
    class Elsewhere(TrainingCohort):
        divided = True

        def any(self, flag):
            return True

    said = {"bk": "weights are not finite after step 0", "none": "elsewhere is not finite at step"}
    for style, message in said.items():
        with pytest.raises(TrainingError, match=message):
            run(style, steps=1, cohort=Elsewhere())


def test_canaries_are_in_the_sum_before_noise_is_added():
    model, seen = gpt2().float(), []

    class Looks(Observer):
        def insert(self, slots):
            seen.append(math.hypot(*(float(p.grad.norm()) for p in model.parameters())))

    everyone = len(EXAMPLES) + 2
    run(steps=1, sigma=1e4, batch=everyone, slots=2, model=model, audit=Looks([]))
    (norm,) = seen
    assert 0 < norm <= 0.5 * len(EXAMPLES)  # of clipped gradients, and of no noise


def test_a_step_has_the_learning_rate_of_its_schedule():
    settings = dataclasses.replace(OPTIM, schedule="linear")
    model, rates = gpt2().float(), []
    optimizer = make_optimizer(settings, model.parameters())
    noted = {"after_step": lambda *given: rates.append(optimizer.param_groups[0]["lr"])}
    run(steps=4, model=model, optimizer=optimizer, settings=settings, **noted)
    assert rates == [settings.lr * lr_factor(settings, step, 4) for step in range(4)]
    assert rates == sorted(set(rates), reverse=True)
