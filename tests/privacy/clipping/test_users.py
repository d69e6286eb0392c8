"""User-level privacy: the gradient of a user is clipped as one, however many records there are."""

from functools import cache

import pytest
import torch

from dpft.config.schema import Optim
from dpft.privacy import Mechanism, UnsupportedLayerError, make_clipper
from dpft.tasks.units import Users
from dpft.training.loop import train
from tests.covering import covering
from tests.privacy import users
from tests.privacy.clipping.test_clipper import gpt2
from tests.privacy.small_models import build
from tests.privacy.users import KEY, ONE_EACH, OWNERS, STYLES, Texts, texts


def step_sums(model, data, style, threshold, budget=300):
    """Return what one real step releases of all users, without noise, before the division."""
    clipper = users.clipper_of(model, style, threshold)
    thresholds = tuple(group.threshold for group in clipper.groups)
    mechanism = Mechanism(len(data), len(data), 1, 0.0, thresholds, 1e-5)
    settings = Optim(name="sgd", lr=1e-30, batch_size=len(data), epochs=1, microbatch_tokens=budget)
    sums, seen = {}, []

    def spend(step, released):
        for name, p in clipper.parameters.items():
            sums[name] = p.grad * mechanism.batch_size

    train(
        **{"model": model, "data": data, "clipper": clipper, "mechanism": mechanism, "key": KEY},
        optimizer=torch.optim.SGD(clipper.parameters.values(), lr=1e-30),
        settings=settings,
        spend=spend,
        after_step=lambda step, statistics: seen.append(statistics),
    )
    clipper.close()
    return sums, seen[0]


@pytest.mark.parametrize("style", ONE_EACH)
@pytest.mark.parametrize("count", [1, 8, 1000])
def test_one_user_moves_a_step_by_at_most_the_threshold(style, count):
    """With a user of that many records, and without that user at all."""
    threshold = 0.5  # below every user's norm: the bound is reached
    owners = [*OWNERS, *["mallory"] * count]
    examples, model = texts(len(owners)), gpt2()
    (with_user, statistics), (without, _) = (
        step_sums(model, Users(Texts(), examples[: len(who)], who, 8, KEY), style, threshold)
        for who in (owners, OWNERS)
    )
    moved = torch.cat([(with_user[name] - without[name]).flatten() for name in without]).norm()
    assert moved <= threshold * (1 + 1e-9)
    assert moved > 0.5 * threshold
    if style != "per_layer":
        assert moved.item() == pytest.approx(threshold, rel=1e-9)
    assert statistics.records == 6


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("vit", r"embeddings \(ViTEmbeddings\)"),
        ("wrn", r"\((Conv|GroupNorm|WeightStandardized)"),
    ],
)
def test_layers_that_cannot_join_rows_are_refused_by_name(name, named):
    case = build(name)
    clipper = make_clipper(case.model, "bk", threshold=1.0)
    losses = case.losses_of([0, 1, 1, 2]).view(2, 2).mean(1)
    with pytest.raises(UnsupportedLayerError, match=f"{named}.*2 rows for each record"):
        clipper.backward(losses, rows=2)


@cache
def expected():
    data = users.text_users()
    gradients = users.gradients_of(gpt2(), data, 1, range(len(data)))
    return gradients, users.median_norm(gradients)


@pytest.mark.parametrize(("style", "cut"), covering(STYLES, [(10_000, 1), (110, 2), (1, 5)]))
def test_norms_and_sums_equal_an_autograd_loop_over_users(style, cut):
    budget, pieces = cut
    model, data = gpt2(), users.text_users()
    gradients, median = expected()
    clipper = users.clipper_of(model, style, threshold=median + 1e-3)
    found = data.microbatches(range(len(data)), budget)
    assert len(found) == pieces
    users.same_as_the_loop(model, data, clipper, gradients, found)
