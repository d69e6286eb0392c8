"""Optimizers step as their papers say, schedules follow, and batch sizes keep their rate."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from dpft.config.schema import OPTIMIZERS, Optim, lr_factor
from dpft.training.mechanisms import expected_batch_size
from dpft.training.setup import make_optimizer

OPTIM = Optim(name="adam", lr=0.1, batch_size=4, epochs=1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_weight_with_a_gradient_moves(name):
    """RGP's matrices are frozen for autograd and given a gradient all the same."""
    p = nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = make_optimizer(dataclasses.replace(OPTIM, name=name), iter([p]))
    p.grad = torch.ones(3)
    optimizer.step()
    assert (p < 1).all()


def test_schedules():
    linear = dataclasses.replace(OPTIM, schedule="linear", warmup_steps=4)
    assert [lr_factor(linear, s, 12) for s in (0, 3, 4, 8, 11)] == [0.25, 1.0, 1.0, 0.5, 0.125]
    assert {lr_factor(OPTIM, s, 12) for s in range(12)} == {1.0}
    cosine = dataclasses.replace(linear, schedule="cosine")
    found = [lr_factor(cosine, s, 12) for s in (0, 4, 6, 8, 10)]
    assert found == pytest.approx([0.25, 1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2])
    share = dataclasses.replace(OPTIM, schedule="linear", warmup_ratio=0.06)
    # Of a hundred steps six; a share that is no whole number is rounded up.
    assert [lr_factor(share, s, 100) for s in (0, 5, 6, 53)] == [1 / 6, 1.0, 1.0, 0.5]
    assert [lr_factor(share, s, 20) for s in (0, 1, 2)] == [0.5, 1.0, 1.0]
    whole = dataclasses.replace(OPTIM, warmup_ratio=1.0)
    assert [lr_factor(whole, s, 4) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_a_batch_size_is_given_or_follows_from_a_rate():
    given = dataclasses.replace(OPTIM, batch_size=1024)
    rate = dataclasses.replace(OPTIM, batch_size=None, sampling_rate=0.0152)
    like = dataclasses.replace(OPTIM, batch_size=1000, rate_like="sst2")  # of 67,349 records
    assert [expected_batch_size(given, n) for n in (2000, 67349)] == [1024, 1024]
    assert [expected_batch_size(rate, n) for n in (67349, 392702)] == [1024, 5969]
    assert [expected_batch_size(like, n) for n in (67349, 392702)] == [1000, 5831]
    assert expected_batch_size(rate, 10) == 1  # at least one record
    for size in (67349, 104743, 363846, 392702):
        rates = expected_batch_size(like, size) / size
        assert math.isclose(rates, 1000 / 67349, rel_tol=1e-3)
