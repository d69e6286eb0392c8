"""Canaries that are records: computed as the run's own records are, scored in full precision."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from dpft.audit.records import RecordCanaries
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_canaries_are_clipped_in_the_runs_precision_and_scored_in_float32(tmp_path, precision):
    with prepared(tmp_path, f"precision={precision}") as (model, clipper, canaries):
        kinds = set()
        layer = next(m for name, m in model.named_modules() if name.endswith("mlp.c_fc"))
        layer.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
        canaries.insert(np.flatnonzero(canaries.included).tolist())
        assert kinds == {getattr(torch, precision)}
        kinds.clear()
        canaries.observe()
        assert kinds == {torch.float32}
        assert canaries.total.any()
        assert {p.grad.dtype for p in clipper.parameters.values()} == {torch.float32}


def test_in_half_precision_no_canary_changes_what_another_adds(tmp_path):
    """As among a run's own records: rounding follows from shapes, and shapes from each alone."""
    words = ["precision=bfloat16", "optim.microbatch_tokens=512"]
    with prepared(tmp_path, *words) as (_, clipper, canaries):
        lengths = canaries._trained.lengths
        longest = np.flatnonzero(canaries.included & (lengths == lengths[canaries.included].max()))
        others = np.flatnonzero(canaries.included & (lengths < lengths.max()))
        assert len(longest) < canaries.included.sum()
        first, last = others[:1].tolist(), longest[:1].tolist()
        together = inserted(clipper, canaries, [*first, *last])
        apart = inserted(clipper, canaries, first) + inserted(clipper, canaries, last)
        assert together.norm() > clipper.sensitivity
        assert (together - apart).norm() < 3e-5 * clipper.sensitivity


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_canary_that_is_included_adds_its_threshold_and_others_nothing(tmp_path, precision):
    with prepared(tmp_path, f"precision={precision}") as (_, clipper, canaries):
        one, *_ = np.flatnonzero(canaries.included).tolist()
        norm, most = float(inserted(clipper, canaries, [one]).norm()), clipper.sensitivity
        # Sums that are products in bfloat16 allow for what they round.
        assert norm == pytest.approx(most, rel=1e-5 if precision == "float32" else 1e-2)
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
