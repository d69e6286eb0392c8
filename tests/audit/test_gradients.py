"""Canaries that are gradients: as large as a record may be, and scored by what is released."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from dpft.audit.canaries import Canaries
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.quantiles import Quantiles


def setup(
    style: str, sigma: float = 1.0, quantiles: Quantiles | None = None
) -> tuple[nn.Module, Canaries]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    clipper = make_clipper(model, style, threshold=0.3, adaptive=quantiles)
    thresholds = tuple(group.threshold for group in clipper.groups)
    mechanism = Mechanism(40, 4, 10, sigma, thresholds, 1e-3)
    if quantiles:
        mechanism = mechanism.over(thresholds, quantiles=quantiles, quantile_budget=0.1)
    return model, Canaries(6, clipper, mechanism, b"key")


def grads(model: nn.Module) -> torch.Tensor:
    given = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([grad.flatten() for grad in given])


@pytest.mark.parametrize("style", ["bk", "per_layer", "per_param"])
def test_an_included_canary_is_as_large_as_a_record_may_be(style: str) -> None:
    model, canaries = setup(style)
    inside = int(np.flatnonzero(canaries.included)[0])
    canaries.insert([inside])

    assert grads(model).norm().item() == pytest.approx(canaries._clipper.sensitivity, rel=1e-6)


def test_what_real_records_add_is_subtracted() -> None:
    """Without noise an included canary scores ``K`` times ``C_k^2``, whatever else is there."""
    model, canaries = setup("per_layer", sigma=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    canaries.insert(range(6))
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad /= 4  # as the noise does: the mean over the expected batch
    canaries.observe()
    sensitivity = canaries._clipper.sensitivity

    inside, outside = canaries.total[canaries.included], canaries.total[~canaries.included]
    # The last group is smaller than the canaries' number at most: coordinates may coincide there.
    assert inside.min() > 0.9 * sensitivity**2
    assert np.abs(outside).max() < 0.6 * sensitivity**2


def test_an_included_canary_counts_as_a_norm_at_its_threshold() -> None:
    """Half a count more in each group, and none of a canary that is left out."""
    _, canaries = setup("per_layer", quantiles=Quantiles(0.5))
    canaries.insert(range(6))

    assert 0 < canaries.included.sum() < 6
    assert canaries._clipper.policy.below.tolist() == [canaries.included.sum() / 2] * 2


def test_scores_go_on_from_a_checkpoint() -> None:
    _, canaries = setup("bk")
    values = np.arange(6.0)
    canaries.add(values)
    _, other = setup("bk")
    other.restore(json.loads(json.dumps(canaries.state())))
    other.add(-values)

    assert other.scores["sum"].tolist() == [0] * 6
    assert other.scores["range"].tolist() == (2 * values).tolist()


def test_only_a_bound_above_the_claim_refutes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpft.audit.canaries.lower_bound", lambda *_, **__: {"epsilon": 2.0})
    _, canaries = setup("bk")
    refuted, allowed = (canaries.result(epsilon=epsilon) for epsilon in (1.5, 2.0))

    assert (refuted["refuted"], allowed["refuted"]) == (True, False)
    assert refuted["epsilon_lower"] == 2.0
