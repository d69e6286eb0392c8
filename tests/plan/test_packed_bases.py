"""Bases in four bits, as `dpft plan` counts their memory."""

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.models.nf4 import PackedLinear, count
from dpft.plan.estimate import StepShape, training_of
from dpft.plan.simulate import simulated
from tests.models.test_frozen_dtype import PACKED, ROUNDED, lora, packs


@packs
def test_all_that_is_frozen_but_head_and_embedding_takes_four_bits_and_plan_counts_them():
    model, rounded = lora(*PACKED), lora(*ROUNDED)
    packed = [m for m in model.modules() if isinstance(m, PackedLinear)]
    assert len(packed) == 2 * 7  # of each block of a Llama
    assert count(model) == sum(p.numel() for p in rounded.parameters())
    cost = {}
    for words in (PACKED, ROUNDED):
        run = parse(compose(["task=e2e", "model=random-llama", "eps=3", *words]))
        cost[words[-1]] = simulated(training_of(run, StepShape(2, 12)))
    less = sum(m.in_features * m.out_features for m in packed)
    saved = 2 * less - sum(m.packed.nbytes + m.scales.nbytes for m in packed)
    assert saved / less == 2 - 0.5 - 4 / 64
    four, sixteen = (cost[words[-1]] for words in (PACKED, ROUNDED))
    assert (four.parameters, four.trained) == (sixteen.parameters, sixteen.trained)
    assert sixteen.held - four.held == saved
    # Between forward and backward no unpacked weight is kept.
    assert sixteen.peaks["forward"] - four.peaks["forward"] == saved
