"""Noisy training: several ranks end where one process does."""

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from dpft.parallel.cohort import Replicas
from dpft.parallel.sharded import Shards, shard
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.shapes import BLANK
from dpft.training.adam_bc import AdamBC
from tests.parallel.matrix import UNITS, Case, built, losses
from tests.parallel.ranks import together

STYLES = ("bk", "ghost", "per_layer_adaptive", "none")
# Copies of shards add to shards a sum that no style knows of.
LAYOUTS = [("data", 3, STYLES), ("fsdp", 3, STYLES), ("hsdp", 4, ("bk", "per_layer_adaptive"))]
STEPS = 5


def mechanism_of(clipper):
    private = bool(clipper.groups)
    return Mechanism(
        dataset_size=UNITS,
        batch_size=3,
        steps=STEPS,
        noise_multiplier=0.7 if private else 0.0,
        thresholds=tuple(group.threshold for group in clipper.groups),
        delta=1e-3,
        quantiles=clipper.adaptive,
        count_noise=3.0 if clipper.adaptive else None,
        # One of the styles in batches of one size, of which some are cut.
        sampling="truncated_poisson" if len(clipper.groups) == 1 else "poisson",
        max_batch=4 if len(clipper.groups) == 1 else None,
    )


def trained(ranks, mesh, style):
    """This process' part of the weights after all steps, with where it begins; and thresholds."""
    case = Case(style, "gpt2")
    made = built(case)
    if ranks is not None and ranks.sharded:
        shard(made.model, mesh)
    clipper = make_clipper(made.model, style, cohort=ranks, **case.options)
    mechanism = mechanism_of(clipper)
    sampler, noise = mechanism.sampler(b"key"), mechanism.noise(b"key", clipper)
    named = clipper.parameters
    optimizer = torch.optim.AdamW(named.values(), lr=1e-2)
    if clipper.adaptive:  # whose noise changes from step to step
        optimizer = AdamBC(named.values(), lr=1e-3, betas=(0.9, 0.99))
    sizes = []
    for step in range(STEPS):
        optimizer.zero_grad()
        drawn = sampler.batch(step)
        mine = list(ranks.share(drawn) if ranks is not None else drawn)
        sizes.append(len(mine))
        if mine or (drawn and ranks.sharded):
            rows = [max(index, 0) for index in mine or [BLANK]]
            real = torch.tensor([index != BLANK for index in mine or [BLANK]])
            clipper.backward(losses(case, made, rows), real=None if real.all() else real)
        noise.privatise_(step)
        optimizer.deviations = {named[name]: std for name, std in noise.deviations.items()}
        optimizer.step()
    clipper.close()
    parts = {}
    for name, parameter in clipper.parameters.items():
        part, first = clipper.own_slice(parameter.detach())
        parts[name] = first, part.numpy().copy()
    return parts, clipper.thresholds, sizes


def all_trained(cohort, layout, styles):
    ranks, mesh = (Replicas() if layout == "data" else Shards()), None
    if layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
    return [trained(ranks, mesh, style) for style in styles]


@pytest.mark.parametrize(("layout", "size", "styles"), LAYOUTS)
def test_noisy_training_ends_where_one_process_does(layout, size, styles):
    launched = together(all_trained, size, layout, styles)
    for style, results in zip(styles, zip(*launched, strict=True), strict=True):
        whole, thresholds, drawn = trained(None, None, style)
        assert [sum(sizes) for sizes in zip(*(r[2] for r in results), strict=True)] == drawn
        held: dict[str, set[tuple[int, int]]] = {}
        for parts, moved, _ in results:
            assert moved == results[0][1]  # the same bits on each rank
            assert moved == pytest.approx(thresholds, rel=1e-9)
            for name, (first, part) in parts.items():
                held.setdefault(name, set()).add((first, first + len(part)))
                expected = whole[name][1][first : first + len(part)]
                np.testing.assert_allclose(part, expected, 1e-9, 1e-9, err_msg=f"{style} {name}")
        copies = {"data": size, "fsdp": 1, "hsdp": 2}[layout]
        for name, (_, weights) in whole.items():
            parts = [results[rank][0][name][1] for rank in range(size)]
            assert sum(map(len, parts)) == copies * len(weights)
            assert sum(stop - start for start, stop in held[name]) == len(weights)
        for name in whole if layout == "data" else ():
            assert all((r[0][name][1] == results[0][0][name][1]).all() for r in results)
