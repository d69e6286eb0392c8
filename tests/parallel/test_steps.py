"""Noisy training: several ranks end where one process does."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from dpft.config.errors import RankError
from dpft.parallel.cohort import Replicas, SingleProcess
from dpft.parallel.sharded import Shards, shard
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.noise import Released
from dpft.privacy.shapes import BLANK
from dpft.tasks.objectives.causal import CausalExample
from dpft.tasks.units import Records
from dpft.training.loop import train
from dpft.training.session import Session
from tests.parallel.matrix import UNITS, Case, built, losses
from tests.parallel.ranks import together
from tests.privacy.clipping.test_clipper import gpt2
from tests.training.test_loop import EXAMPLES, OPTIM, TinyObjective

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
    optimizer = torch.optim.AdamW(clipper.parameters.values(), lr=1e-2)
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


# --- the loop of a run ---


class Objective(TinyObjective):
    """Losses of which some are not finite; with a record of nobody."""

    def blank(self):
        return CausalExample((1,), (1,))


def looped(ranks, key=b"key"):
    """Weights, the seeds that masks were drawn from, and what was seen of each step."""
    model, seeds, seen = gpt2(), [], []
    if ranks.sharded:
        shard(model)
    clipper = make_clipper(model, "bk", threshold=0.5, cohort=None if ranks.size == 1 else ranks)
    seeded = torch.manual_seed
    torch.manual_seed = lambda seed: seeds.append(seed) or seeded(seed)
    try:
        train(
            model=model,
            data=Records(Objective(poison=math.nan), EXAMPLES),
            clipper=clipper,
            mechanism=Mechanism(len(EXAMPLES), 12, 3, 0.5, (0.5,), 1e-3),
            optimizer=torch.optim.Adam(clipper.parameters.values(), lr=1e-2),
            settings=OPTIM,
            key=key,
            cohort=ranks,
            spend=lambda step, released: seen.append(step),
            after_step=lambda step, statistics: seen.append(statistics.summary(ranks)),
        )
    except RankError as error:
        return str(error), seen
    finally:
        torch.manual_seed = seeded
        clipper.close()
    named = model.named_parameters()
    return {n: ranks.whole(p.detach()).numpy() for n, p in named}, seeds, seen


def all_looped(cohort):
    runs = {"data": looped(Replicas()), "fsdp": looped(Shards())}
    return runs, looped(Replicas(), b"key of rank %d" % cohort.rank)


def test_a_loss_that_is_not_finite_on_one_rank_and_draws_that_differ():
    """The first is left out as in one process; the second end the run before a release."""
    whole, (_, *_), steps = looped(SingleProcess())
    dropped = [seen["dropped"] for seen in steps[1::2]]
    assert sum(dropped) > 0
    launched = together(all_looped, 2)
    for layout in ("data", "fsdp"):
        found = [runs[layout] for runs, _ in launched]
        for weights, _, seen in found:
            for name, expected in whole.items():
                np.testing.assert_allclose(weights[name], expected, 1e-9, 1e-9, err_msg=name)
            assert seen[::2] == [0, 1, 2]
            assert [each["dropped"] for each in seen[1::2]] == dropped
            assert [each["loss"] for each in seen[1::2]] == pytest.approx(
                [each["loss"] for each in steps[1::2]]
            )
        # Masks fall to rows: a rank's own, in each step.
        assert len({seed for _, seeds, _ in found for seed in seeds}) == 2 * 3
    for _, (said, seen) in launched:
        assert "has computed something else than another rank" in said
        assert seen == []


def spent(cohort, sums, divided):
    """What a rank says of a release, and what of it the first one puts down in the ledger."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor(sums[cohort.rank])
    session, lines = object.__new__(Session), []
    session._mechanism = SimpleNamespace(private=True, rdp_after=float)
    session._clipper = SimpleNamespace(parameters={"weight": parameter})
    session._cohort, cohort.divided = cohort, divided
    session._ledger = SimpleNamespace(spend=lambda step, **entry: lines.append(entry["update"]))
    try:
        session._spend(0, Released())
    except RankError as error:
        return str(error), lines
    return "", lines


ALIKE, UNLIKE = ([1.0, 2.0], [1.0, 2.0]), ([1.0, 2.0], [1.0, 3.0])


def all_spent(cohort):
    cases = ((ALIKE, False), (UNLIKE, False), (ALIKE, True), (UNLIKE, True))
    return [spent(cohort, sums, divided) for sums, divided in cases]


def test_a_release_that_ranks_do_not_share_is_not_counted_as_one():
    """Where each holds a part, the digest is of all parts."""
    for alike, unlike, first, second in together(all_spent, 2):
        assert not alike[0]
        assert len(alike[1]) == 1
        assert "Nothing of this step was released" in unlike[0]
        assert unlike[1] == []  # a line of one rank's digest would stop every replay
        assert first[0] == second[0] == ""
        assert first[1] != second[1]
