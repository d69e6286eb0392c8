"""Sums, norms and counts of several ranks are those of one process, whatever the layout."""

import numpy as np
import pytest
import torch

from tests.parallel.matrix import (
    LAUNCHES,
    THRESHOLD,
    Case,
    added_up,
    cases,
    check,
    one_process,
    shares,
)
from tests.parallel.ranks import together


@pytest.mark.parametrize(("layout", "size"), LAUNCHES)
def test_sums_are_those_of_one_process(layout, size):
    given = [(case, shares(size, number)) for number, case in enumerate(cases(layout, size))]
    ranks = together(added_up, size, layout, given)
    for (case, _), results in zip(given, zip(*ranks, strict=True), strict=True):
        check(case, results)


@pytest.mark.parametrize("layout", ["data", "fsdp"])
def test_nobody_was_drawn(layout):
    given = [(Case(style, "gpt2"), [[], []]) for style in ("bk", "per_layer_adaptive", "none")]
    for rank in together(added_up, 2, layout, given):
        for summed in rank:
            assert all((part == 0).all() for _, part in summed.sums.values())
            assert summed.below is None or (summed.below == 0).all()


def test_the_cases_clip_some_units_and_not_others():
    """Or equal sums would prove little."""
    for case in cases("data", 2):
        if case.style != "none":
            norms = np.stack(list(one_process(case).norms.values()))
            of_group = THRESHOLD if "adaptive" in case.style else THRESHOLD / norms.shape[1] ** 0.5
            assert (norms > of_group).any(), case
    assert {case.dtype for case in cases("data", 2)} == {torch.float32, torch.float64}
