"""Fully sharded: sums, norms and counts of several ranks are those of one process."""

import itertools

import numpy as np
import pytest
import torch

from dpft.parallel.sharded import Shards, shard
from dpft.privacy import make_clipper
from tests.parallel.ranks import together
from tests.parallel.test_replicas import (
    OPTIONS,
    THRESHOLD,
    enlarged,
    mechanism_of,
    summed,
    trained,
    weights,
)
from tests.privacy.small_models import build

STYLES = ("ghost", "bk", "lee_kifer", "flat", "per_layer", "per_layer_adaptive", "block_wise")
MODELS = (("gpt2", True), ("gpt2", False), ("llama", True), ("roberta_mlm", True), ("vit", True))
CASES = list(itertools.product(STYLES, MODELS))


def microbatches(mine, count, size=2):
    """As many on every rank; those that a rank has no records for hold none that counts."""
    pieces = [mine[start : start + size] for start in range(0, len(mine), size)]
    return pieces + [[]] * (count - len(pieces))


def sharded(cohort, shares):
    return [one(cohort, style, *model, shares) for style, model in CASES]


def one(cohort, style, name, tied, shares):
    ranks = Shards()
    case = enlarged(build(name, tied))
    shard(case.model)
    clipper = make_clipper(
        case.model, style, threshold=THRESHOLD, cohort=ranks, **OPTIONS.get(style, {})
    )
    count = max(-(-len(share) // 2) for share in shares)
    for index in microbatches(shares[cohort.rank], count):
        rows = index or [0]
        real = torch.tensor([bool(index)] * len(rows))
        losses = case.losses(case.model, case.rows(rows)) * weights(rows)
        clipper.backward(losses, real=None if index else real)
    clipper.collect()
    sums = {n: p.grad.full_tensor().numpy() for n, p in clipper.parameters.items()}
    below = clipper.below.numpy() if clipper.adaptive else None
    clipper.close()
    return sums, below


@pytest.mark.parametrize(
    "shares",
    [
        [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]],
        [[], list(range(11))],
        [[4, 1], list(range(5, 11)), [0, 2, 3]],
    ],
    ids=["even", "one is empty", "three"],
)
def test_sums_are_those_of_one_process(shares):
    ranks = together(sharded, len(shares), shares)
    for place, (style, model) in enumerate(CASES):
        sums, below, _ = summed(None, style, *model, shares)
        for result in ranks:
            got, counts = result[place]
            for name, total in sums.items():
                np.testing.assert_allclose(
                    got[name], total, rtol=1e-10, atol=1e-12, err_msg=f"{style} {model} {name}"
                )
            assert below is None or (counts == below).all()


def trained_shards(cohort, style):
    """Whole weights and thresholds after all steps, and how many numbers this rank held."""
    ranks = Shards()
    case = enlarged(build("gpt2"))
    shard(case.model)
    clipper = make_clipper(case.model, style, threshold=THRESHOLD, cohort=ranks)
    mechanism = mechanism_of(clipper)
    sampler, noise = mechanism.sampler(b"key"), mechanism.noise(b"key", clipper)
    optimizer = torch.optim.AdamW(clipper.parameters.values(), lr=1e-2)
    for step in range(mechanism.steps):
        optimizer.zero_grad()
        drawn = sampler.batch(step)
        mine = list(cohort.share(drawn))
        rows = mine or [0]
        losses = case.losses(case.model, case.rows(rows)) * weights(rows)
        if drawn:
            clipper.backward(losses, real=None if mine else torch.tensor([False]))
        noise.privatise_(step)
        optimizer.step()
    held = sum(p.to_local().numel() for p in clipper.parameters.values())
    whole = {n: p.full_tensor().detach().numpy() for n, p in clipper.parameters.items()}
    clipper.close()
    return whole, clipper.thresholds, held


@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer_adaptive"])
def test_noisy_training_on_shards_ends_where_one_process_does(style):
    ranks = together(trained_shards, 3, style)
    alone, thresholds = trained(None, style)
    for whole, moved, _ in ranks:
        assert moved == pytest.approx(thresholds, rel=1e-9)
        for name, expected in alone.items():
            np.testing.assert_allclose(whole[name], expected, rtol=1e-9, atol=1e-9)
    assert sum(held for *_, held in ranks) == sum(w.size for w in alone.values())
