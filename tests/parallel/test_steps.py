"""Noisy training: several ranks end where one process does."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpft.config.errors import RankError
from dpft.parallel.cohort import Replicas, TrainingCohort
from dpft.parallel.sharded import Shards, shard
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.noise import Released
from dpft.tasks.objectives.generation import CausalExample
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
    """Weights, and what was seen of each step."""
    model, seen = gpt2(), []
    if ranks.sharded:
        shard(model)
    clipper = make_clipper(model, "bk", threshold=0.5, cohort=None if ranks.size == 1 else ranks)
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
        clipper.close()
    return {n: ranks.whole(p.detach()).numpy() for n, p in model.named_parameters()}, seen


def all_looped(cohort):
    runs = {"data": looped(Replicas()), "fsdp": looped(Shards())}
    return runs, looped(Replicas(), b"key of rank %d" % cohort.rank)


def test_a_loss_that_is_not_finite_on_one_rank_and_draws_that_differ():
    """The first is left out as in one process; the second end the run before a release."""
    whole, steps = looped(TrainingCohort())
    dropped = [seen["dropped"] for seen in steps[1::2]]
    assert sum(dropped) > 0
    launched = together(all_looped, 2)
    for layout in ("data", "fsdp"):
        for weights, seen in (runs[layout] for runs, _ in launched):
            for name, expected in whole.items():
                np.testing.assert_allclose(weights[name], expected, 1e-9, 1e-9, err_msg=name)
            assert seen[::2] == [0, 1, 2]
            assert [each["dropped"] for each in seen[1::2]] == dropped
            assert [each["loss"] for each in seen[1::2]] == pytest.approx(
                [each["loss"] for each in steps[1::2]]
            )
    for _, (said, seen) in launched:
        assert "has computed something else than another rank" in said
        assert seen == []


def spent(cohort):
    """What ranks of alike and unlike sums say of a release, and what is put down in the ledger."""
    found = []
    for divided in (False, True):
        for unlike in (0.0, 1.0):
            parameter, lines = torch.nn.Parameter(torch.zeros(2)), []
            parameter.grad = torch.tensor([1.0, 2.0 + unlike * cohort.rank])
            session = object.__new__(Session)
            parts = SimpleNamespace(
                mechanism=SimpleNamespace(private=True, rdp_after=float),
                clipper=SimpleNamespace(parameters={"weight": parameter}),
            )
            session.prepared, cohort.divided = SimpleNamespace(parts=parts, cohort=cohort), divided
            session._ledger = SimpleNamespace(spend=lambda step, to=lines, **line: to.append(line))
            try:
                session._spend(0, Released())
            except RankError as error:
                lines.append(str(error))
            found.append(lines)
    return found


def test_a_release_that_ranks_do_not_share_is_not_counted_as_one():
    """Where each holds a part, the digest is of all parts."""
    for (alike,), (unlike,), (one,), (other,) in together(spent, 2):
        assert alike["update"]
        # A line of one rank's digest would stop every replay.
        assert "Nothing of this step was released" in unlike
        assert one["update"] != other["update"]
