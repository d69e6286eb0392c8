"""Canaries that are records: as large as a record may be."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from dpft.audit.canaries import RecordCanaries
from tests.small_runs import ready, settings

WORDS = [
    *("task=language_modeling", "model=random-gpt2", "task.limit_train=32", "task.max_length=40"),
    *("audit=bound", "audit.gradients=0", "audit.records=40"),
]


@contextmanager
def prepared(folder, *words):
    """The model of a run that is ready, its clipper, and its canaries."""
    with ready(settings(folder, *WORDS, *words)) as (found, _, _):
        assert found.auditor is not None
        canaries = found.auditor.parts["records"]
        assert isinstance(canaries, RecordCanaries)
        yield found.parts.loaded.model, found.parts.clipper, canaries


def inserted(clipper, canaries, slots):
    """What canaries add to the sums, in one row."""
    canaries.insert(slots)
    sums = []
    for parameter in clipper.parameters.values():
        sums.append(parameter.grad.flatten().double())
        parameter.grad = None
    return torch.cat(sums)


def test_a_canary_that_is_included_adds_its_threshold_and_others_nothing(tmp_path):
    with prepared(tmp_path) as (_, clipper, canaries):
        one, *_ = np.flatnonzero(canaries.included).tolist()
        norm, most = float(inserted(clipper, canaries, [one]).norm()), clipper.sensitivity
        assert norm == pytest.approx(most, rel=1e-5)
        assert norm <= most * (1 + 1e-5)
        canaries.insert(np.flatnonzero(~canaries.included).tolist())
        assert all(parameter.grad is None for parameter in clipper.parameters.values())


def test_what_real_records_add_is_no_part_of_a_score(tmp_path):
    """Of a release without noise and canaries nothing is left once their sum is subtracted."""
    with prepared(tmp_path, "optim.batch_size=4") as (_, clipper, canaries):
        for parameter in clipper.parameters.values():
            parameter.grad = torch.randn_like(parameter)
        canaries.insert(np.flatnonzero(~canaries.included).tolist())
        for parameter in clipper.parameters.values():
            parameter.grad /= 4  # a power of two leaves every digit
        canaries.observe()
        assert not canaries.total.any()
