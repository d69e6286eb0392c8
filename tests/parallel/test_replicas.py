"""Data parallel: the sums, counts and weights of several ranks are those of one process."""

import itertools

import numpy as np
import pytest
import torch

from dpft.privacy import Mechanism, make_clipper
from tests.parallel.ranks import together
from tests.privacy.small_models import build

STYLES = ("ghost", "bk", "lee_kifer", "flat", "per_layer", "per_layer_adaptive", "two_group")
MODELS = (("gpt2", True), ("gpt2", False), ("llama", True), ("roberta_mlm", True), ("vit", True))
OPTIONS = {"two_group": {"boundary": 1}}
CASES = list(itertools.product(STYLES, MODELS))
THRESHOLD = 0.5


def enlarged(case, batch=11):
    """The case with other records, each a little unlike the four that it has."""
    torch.manual_seed(5)
    index = torch.arange(batch) % case.batch
    data = {name: tensor[index].clone() for name, tensor in case.data.items()}
    for tensor in data.values():
        if tensor.is_floating_point():
            tensor += torch.randn_like(tensor)
    if "input_ids" in data:
        ids = data["input_ids"]
        data["input_ids"] = torch.where(
            ids == 1, ids, (ids + torch.arange(batch)[:, None]) % 10 + 3
        )
    case.data = data
    return case


def weights(index):
    return 0.2 + torch.tensor([i % 5 for i in index], dtype=torch.float64)


def summed(cohort, style, name, tied, shares):
    """Sums and counts, formed in unequal microbatches of this rank's share."""
    case = enlarged(build(name, tied))
    clipper = make_clipper(
        case.model, style, threshold=THRESHOLD, cohort=cohort, **OPTIONS.get(style, {})
    )
    mine = shares[cohort.rank] if cohort else [i for share in shares for i in share]
    size = 2 + (cohort.rank if cohort else 4)
    for start in range(0, len(mine), size):
        index = mine[start : start + size]
        clipper.backward(case.losses(case.model, case.rows(index)) * weights(index))
    clipper.collect()
    zero = torch.zeros(())
    sums = {n: (zero if p.grad is None else p.grad).numpy() for n, p in clipper.parameters.items()}
    below = clipper.below.numpy() if clipper.adaptive else None
    clipped = float((clipper.factors < 1).double().mean()) if len(mine) else 0.0
    clipper.close()
    return sums, below, clipped


def all_summed(cohort, shares):
    return [summed(cohort, style, *model, shares) for style, model in CASES]


SHARES = {
    "even": [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]],
    "one is empty": [[], list(range(11))],
    "three": [[4, 1], list(range(5, 11)), [0, 2, 3]],
    "nobody was drawn": [[], []],
}


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_sums_are_those_of_one_process(shares):
    ranks = together(all_summed, len(shares), shares)
    for place, (style, model) in enumerate(CASES):
        sums, below, _ = summed(None, style, *model, shares)
        for result in ranks:
            got, counts, _ = result[place]
            for name, total in sums.items():
                np.testing.assert_allclose(got[name], total, rtol=1e-10, atol=1e-12)
                assert (got[name] == ranks[0][place][0][name]).all()
            if below is not None:
                assert (counts == below).all()
            assert (below is not None) is (style == "per_layer_adaptive")
    if any(shares):
        assert max(clipped for result in ranks for _, _, clipped in result) > 0.5


def mechanism_of(clipper):
    return Mechanism(
        dataset_size=11,
        batch_size=4,
        steps=8,
        noise_multiplier=0.7,
        thresholds=tuple(group.threshold for group in clipper.groups),
        delta=1e-3,
        quantiles=clipper.adaptive,
        count_noise=3.0 if clipper.adaptive else None,
    )


def trained(cohort, style):
    """Weights and thresholds after all steps, each of which draws from all records."""
    case = enlarged(build("gpt2"))
    clipper = make_clipper(case.model, style, threshold=THRESHOLD, cohort=cohort)
    mechanism = mechanism_of(clipper)
    sampler, noise = mechanism.sampler(b"key"), mechanism.noise(b"key", clipper)
    optimizer = torch.optim.AdamW(clipper.parameters.values(), lr=1e-2)
    for step in range(mechanism.steps):
        optimizer.zero_grad()
        drawn = sampler.batch(step)
        mine = cohort.share(drawn) if cohort else drawn
        if mine:
            losses = case.losses(case.model, case.rows(list(mine)))
            clipper.backward(losses * weights(mine))
        noise.privatise_(step)
        optimizer.step()
    clipper.close()
    return {n: p.detach().numpy() for n, p in clipper.parameters.items()}, clipper.thresholds


@pytest.mark.parametrize("style", ["bk", "per_layer_adaptive"])
def test_noisy_training_keeps_replicas_alike_and_ends_where_one_process_does(style):
    ranks = together(trained, 3, style)
    alone, thresholds = trained(None, style)
    for weights_of, moved in ranks:
        assert moved == pytest.approx(thresholds, rel=1e-9)
        for name, expected in alone.items():
            assert (weights_of[name] == ranks[0][0][name]).all()
            np.testing.assert_allclose(weights_of[name], expected, rtol=1e-9, atol=1e-9)
