"""Every style on every architecture equals an autograd loop, in float64 to 1e-10.

The combinations are covering pairs of all that the sums have to do with: the model, whether its
weights are tied, the groups, the plan, the clip function, how the batch is cut into microbatches,
or is one program, how many rows a unit has, and what one record of the batch does. DPFT_LONG=1
tries every model with every style.
"""

import math
import os

import pytest
import torch

from dpft.privacy import make_clipper
from dpft.privacy.clipping.groups import partition
from dpft.privacy.clipping.plans import PRIVATE_PLANS
from dpft.privacy.spec import CLIP_FUNCTIONS, PARTITIONS, TWO_BACKWARDS, Partition
from tests.covering import covering, possible
from tests.privacy.reference import (
    clear,
    clip_records,
    program_of,
    record_gradients,
    same_grads,
    same_sums,
)
from tests.privacy.small_models import MODELS, TYING, Case, build

TOLERANCE = 1e-10

# The settings that each partition needs.
OPTIONS = {"uniform": {"count": 2}, "two_group": {"boundary": 1}, "per_device": {"count": 2}}
# The batches of units, each in microbatches. A signature is verified where it comes first.
CUTS = {
    "whole": [[[0, 1, 2]]],
    "in two": [[[0], [1, 2]]],
    "verified before": [[[0, 1, 2]], [[0, 1, 2]]],
    "padded": [[[0, 1, 2]]],
    "weighted": [[[0, 1, 2]]],
    "program": [],
    "padded program": [],
    "weighted program": [],
}
# Of the units; one without a weight is padding.
WEIGHTS = {
    "padded": (True, True, False),
    "weighted": (0.25, 1.0, 0.5),
    "padded program": (True, True, False),
    "weighted program": (0.25, 1.0, 0.0),
}
# A unit of one row is a record, one of several a user.
ROWS = (1, 2)
BAD = (None, math.nan, math.inf)
JOINING_NO_ROWS = ("vit", "wrn")


def excluded(name, tied, groups, plan, function=None, cut=None, rows=1, bad=None):
    """Exclude what there is not: nothing to tie, two backwards for groups, images of a user."""
    return (
        (tied and name not in TYING)
        or ("program" in (cut or "") and (plan == "lee_kifer" or bad is not None))
        or (groups != "flat" and plan in TWO_BACKWARDS)
        or (rows > 1 and name in JOINING_NO_ROWS)
    )


STYLED = (tuple(MODELS), (True, False), tuple(PARTITIONS), tuple(PRIVATE_PLANS))
CASES = covering(*STYLED, CLIP_FUNCTIONS, tuple(CUTS), ROWS, BAD, excluded=excluded)
if "DPFT_LONG" in os.environ:
    CASES += [
        (*styled, "abadi", "verified before", 1, None)
        for styled in possible(*STYLED, excluded=excluded)
    ]


def partition_for(groups, model):
    if groups == "custom":  # every other parameter: no layer has a separate group
        names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        return Partition("custom", patterns=(names[::2], names[1::2]))
    return Partition(groups, **OPTIONS.get(groups, {}))


@pytest.fixture(scope="module")
def references():
    """Each architecture's gradients of every record, computed once."""
    return {}


def losses_of(case, units, rows, bad):
    """The loss of each unit, which is the mean over its rows; each has the next one's first."""
    index = [(unit + row) % case.batch for unit in units for row in range(rows)]
    losses = case.losses(case.model, case.rows(index)).view(-1, rows).mean(1)
    scale = [bad if unit == 1 and bad is not None else 1.0 for unit in units]
    return losses * torch.tensor(scale, dtype=losses.dtype)


def factor_of(clip_function, limits):
    return {
        "abadi": lambda k, n: min(1.0, limits[k] / n),
        "automatic": lambda k, n: limits[k] / (n + 0.01),
    }[clip_function]


def equal_the_loop(case, records, groups, plan, clip_function, cut, rows, bad):
    """Norms and sums of three units are those of autograd, and a unit that is not finite is out."""
    weights = torch.tensor(WEIGHTS[cut]) if cut in WEIGHTS else None
    weighed = [1.0] * 3 if weights is None else weights.tolist()
    good = [i for i in range(3) if weighed[i] and (bad is None or i != 1)]
    units = [
        {n: (g + records[(i + rows - 1) % case.batch][n]) / 2 for n, g in records[i].items()}
        for i in good
    ]
    how = partition_for(groups, case.model)
    trained = {n: p for n, p in case.model.named_parameters() if p.requires_grad}
    parts = [names for _, names in partition(case.model, trained, how)]
    sizes, _ = clip_records(units, parts, lambda k, n: 1.0)
    clipper = make_clipper(
        case.model,
        groups=how,
        plan=plan,
        # In every group one that clips some and others not, and another than in the next.
        thresholds=[max(1.001 * size, 1e-3) for size in sizes.median(0).values.tolist()],
        clip_function=clip_function,
    )
    factor = factor_of(clip_function, clipper.thresholds)
    parts = [group.parameters for group in clipper.groups]
    norms, total = clip_records(units, parts, factor, [weighed[i] for i in good])
    if "program" in cut:
        traced = Case(case.model, case.rows([2, 0, 1]), case.losses)  # with other units
        others = None if weights is None else torch.ones_like(weights)
        program = program_of(clipper, traced, rows, others)
        index = [(unit + row) % case.batch for unit in range(3) for row in range(rows)]
        found = program([*case.rows(index).values()], weights)
        assert bool(found.finite)
        torch.testing.assert_close(found.norms[good], norms, rtol=TOLERANCE, atol=TOLERANCE)
        same_sums(found, clipper, total)
    for batch in CUTS[cut]:
        clear(case.model)
        seen, factors = [], []
        for piece in batch:
            clipper.backward(losses_of(case, piece, rows, bad), rows=rows, weights=weights)
            seen.append(clipper.norms)
            factors.append(clipper.factors)
        torch.testing.assert_close(torch.cat(seen)[good], norms, rtol=TOLERANCE, atol=TOLERANCE)
        assert bad is None or not torch.cat(factors)[1].any()
        same_grads(case.model, total, TOLERANCE)
    clipper.close()


@pytest.mark.parametrize("combination", CASES, ids=lambda values: "-".join(map(str, values)))
def test_sums_and_norms_equal_the_autograd_loop(references, combination):
    name, tied, *clipping = combination
    case = build(name, tied)
    if (name, tied) not in references:
        references[name, tied] = record_gradients(case.model, case.record_loss, case.batch)
    equal_the_loop(case, references[name, tied], *clipping)


@pytest.mark.parametrize("plan", TWO_BACKWARDS)
def test_two_backwards_cannot_clip_groups(plan):
    with pytest.raises(ValueError, match="plan='fused'"):
        make_clipper(build("gpt2").model, "per_layer", plan=plan, threshold=1.0)
