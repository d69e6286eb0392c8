"""Noisy training: several ranks end where one process does."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpft.config.errors import RankError
from dpft.parallel.cohort import Replicas, TrainingCohort
from dpft.parallel.sharded import Shards, shard
from dpft.privacy import Mechanism, keys, make_clipper
from dpft.privacy.noise import Released
from dpft.tasks.objectives.causal import CausalExample
from dpft.tasks.units import Records
from dpft.training.loop import train
from dpft.training.session import Session
from tests.parallel.ranks import together
from tests.privacy.clipping.test_clipper import gpt2
from tests.training.test_loop import EXAMPLES, OPTIM, TinyObjective


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
    made = keys.seed

    def noted(key, purpose, *labels):
        found = made(key, purpose, *labels)
        if purpose == "dropout":
            seeds.append(found)
        return found

    keys.seed = noted
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
        keys.seed = made
        clipper.close()
    named = model.named_parameters()
    return {n: ranks.whole(p.detach()).numpy() for n, p in named}, seeds, seen


def all_looped(cohort):
    runs = {"data": looped(Replicas()), "fsdp": looped(Shards())}
    return runs, looped(Replicas(), b"key of rank %d" % cohort.rank)


def test_a_loss_that_is_not_finite_on_one_rank_and_draws_that_differ():
    """The first is left out as in one process; the second end the run before a release."""
    whole, (_, *_), steps = looped(TrainingCohort())
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
    parts = SimpleNamespace(
        mechanism=SimpleNamespace(private=True, rdp_after=float),
        clipper=SimpleNamespace(parameters={"weight": parameter}),
    )
    session.prepared, cohort.divided = SimpleNamespace(parts=parts, cohort=cohort), divided
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
