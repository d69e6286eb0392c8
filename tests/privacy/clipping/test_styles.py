"""Every style on every architecture equals an autograd loop, in float64 to 1e-10."""

import itertools
import math

import pytest
import torch
import yaml

from dpft.config.folder import conf_dir
from dpft.privacy import make_clipper
from dpft.privacy.clipping.functions import CLIP_FUNCTIONS
from dpft.privacy.clipping.plans import PRIVATE_PLANS
from dpft.privacy.spec import PARTITIONS, STYLES, TWO_BACKWARDS, Partition
from tests.privacy.reference import (
    clear,
    clip_records,
    grads_of,
    record_gradients,
    same_grads,
)
from tests.privacy.small_models import MODELS, TYING, build

TOLERANCE = 1e-10
CASES = [(name, tied) for name in MODELS for tied in (True, False) if name in TYING or not tied]

# What each partition needs to be told.
OPTIONS = {"uniform": {"count": 2}, "two_group": {"boundary": 1}, "per_device": {"count": 2}}


def partition_for(groups, model):
    if groups == "custom":  # every other parameter: no layer has a group of its own
        names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        return Partition("custom", patterns=(names[::2], names[1::2]))
    return Partition(groups, **OPTIONS.get(groups, {}))


COMBINATIONS = [
    (groups, plan)
    for groups, plan in itertools.product(PARTITIONS, PRIVATE_PLANS)
    if groups == "flat" or plan not in TWO_BACKWARDS
]


@pytest.fixture(scope="module")
def references():
    """Per-record gradients of each architecture, computed once."""
    return {}


def equal_the_loop(case, records, groups, plan):
    """Whole batch and accumulated microbatches, both clip functions, first and later batches."""
    for clip_function in CLIP_FUNCTIONS:
        clipper = make_clipper(
            case.model,
            groups=partition_for(groups, case.model),
            plan=plan,
            threshold=1.0,
            clip_function=clip_function,
        )
        thresholds = clipper.thresholds
        factor = {
            "abadi": lambda k, n, most=thresholds: min(1.0, most[k] / n),
            "automatic": lambda k, n, most=thresholds: most[k] / (n + 0.01),
        }[clip_function]
        parts = [group.parameters for group in clipper.groups]
        norms, total = clip_records(records, parts, factor)
        slices = [[slice(None)], [slice(0, 1), slice(1, None)], [slice(None)]]
        for cut in slices:  # the third sees a signature that was verified before
            clear(case.model)
            seen = []
            for part in cut:
                clipper.backward(case.losses(case.model, case.rows(part)))
                seen.append(clipper.norms)
            torch.testing.assert_close(torch.cat(seen), norms, rtol=TOLERANCE, atol=TOLERANCE)
            same_grads(case.model, total, TOLERANCE)
        clipper.close()


@pytest.mark.parametrize(("name", "tied"), CASES)
@pytest.mark.parametrize(("groups", "plan"), COMBINATIONS)
def test_sums_and_norms_equal_the_autograd_loop(references, name, tied, groups, plan):
    case = build(name, tied)
    if (name, tied) not in references:
        references[name, tied] = record_gradients(case.model, case.record_loss, case.batch)
    equal_the_loop(case, references[name, tied], groups, plan)


@pytest.mark.parametrize(("name", "tied"), CASES)
@pytest.mark.parametrize("style", [s for s in STYLES if s != "none" and not s.startswith("custom")])
def test_adding_one_record_moves_the_sum_by_at_most_the_sensitivity(name, tied, style):
    """In every style; the bound is attained where all groups of the record are clipped."""
    case = build(name, tied)
    options = OPTIONS.get(style.removesuffix("_adaptive"), {})
    clipper = make_clipper(case.model, style, threshold=1e-3, **options)
    clipper.backward(case.all_losses())
    whole = grads_of(case.model)
    for i in range(case.batch):
        clear(case.model)
        rest = [j for j in range(case.batch) if j != i]
        clipper.backward(case.losses(case.model, case.rows(rest)))
        without = grads_of(case.model)
        moved = math.sqrt(sum((whole[n] - without[n]).square().sum().item() for n in whole))
        assert moved <= clipper.sensitivity * (1 + 1e-9)
        assert moved > 0.5 * clipper.sensitivity


@pytest.mark.parametrize("plan", TWO_BACKWARDS)
def test_two_backwards_cannot_clip_groups(plan):
    with pytest.raises(ValueError, match="plan='fused'"):
        make_clipper(build("gpt2").model, "per_layer", plan=plan, threshold=1.0)


def test_uniform_has_the_count_of_its_config_where_nothing_is_given():
    shipped = yaml.safe_load((conf_dir() / "clip" / "uniform.yaml").read_text())
    model = build("gpt2", tied=True).model
    clipper = make_clipper(model, "uniform", threshold=0.1)
    assert len(clipper.groups) == shipped["count"]
    clipper.close()
    with pytest.raises(ValueError, match="'uniform' got boundary=1; expected count"):
        make_clipper(model, "uniform", threshold=0.1, boundary=1)
