"""One fake rank of many: its memory and its messages are those of true ranks."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.parallel.metering import Meter
from dpft.parallel.pretended import PretendedAnswers
from dpft.parallel.simulate import simulated, steps, world
from dpft.training.planned_step import shape_of, training_of
from tests.parallel.ranks import together
from tests.parallel.test_operations import flops

# Beside what is counted, what Python frees a moment later.
CLOSE = 0.01


def run_of(*words):
    return parse(compose(["model=random-gpt2", *words]))


def training(style="bk", layout="data", ranks=1, rank=0, **options):
    words = f"clip={style} parallel={layout} model.tied=false"
    run = run_of(*words.split(), *(f"parallel.{key}={value}" for key, value in options.items()))
    found = training_of(run, shape_of(run, ranks, 3, 20, rank))
    return found if layout != "pipeline" else replace(found, build=narrow)


def same(simulation, true):
    assert simulation.held == pytest.approx(true.held, rel=CLOSE)
    assert (simulation.checked or 0) == pytest.approx(true.checked or 0, rel=CLOSE)
    assert simulation.peaks == pytest.approx(true.peaks, rel=CLOSE)
    assert simulation.sent == true.sent
    assert simulation.noise == true.noise
    assert products(simulation) == products(true)


def products(cost):
    return {phase: flops(work) for phase, work in cost.work.items()}


@pytest.mark.parametrize("style", ["none", "bk", "per_layer", "ghost"])
def test_memory_of_one_process_is_that_of_true_tensors(style):
    chosen = training(style)
    meter = Meter()
    with meter:
        true = steps(chosen, meter, chosen.build())
    same(simulated(chosen, on_gpu=False), true)


def true_steps(cohort, cases):
    costs = []
    for style, layout, options in cases:
        meter = Meter()
        chosen = training(style, layout, cohort.size, cohort.rank, **options)
        layout = world(chosen)
        with meter:
            costs.append(steps(chosen, meter, chosen.build(), layout))
    return costs


CASES = {
    2: [
        ("bk", "fsdp", {}),
        ("per_layer_adaptive", "data", {}),
        ("bk", "pipeline", {"schedule": "zbv", "microbatches": 4}),
    ],
    4: [("bk", "fsdp", {"shards": 2})],
}


@pytest.mark.parametrize("size", CASES)
def test_memory_and_messages_of_ranks_are_those_of_true_ones(size):
    ranks = together(true_steps, size, CASES[size])
    for number, case in enumerate(CASES[size]):
        style, layout, options = case
        rank = size - 1 if layout == "pipeline" else 0  # which has the head, or the most
        true = ranks[rank][number]
        assert true.sent, case
        simulation = simulated(training(style, layout, size, rank, **options), on_gpu=False)
        # Gloo holds on to messages for a while after they were sent.
        sent = simulation.sent
        message = 4 * simulation.trained + sent.get("send", 0) + 2 * sent.get("all-reduce", 0)
        for name, peak in true.peaks.items():
            assert 0.99 * simulation.peaks[name] <= peak <= simulation.peaks[name] + message
        if true.checked is not None:
            assert 0.99 * simulation.checked <= true.checked <= simulation.checked + message
        same(replace(simulation, peaks=true.peaks, checked=true.checked), true)
        if simulation.noise:  # weights and two moments of its own part, and what is received
            assert simulation.held == pytest.approx(12 * simulation.noise, rel=0.15)


def test_shards_are_gathered_as_often_as_without_privacy():
    plain, private = (
        simulated(replace(training(style, "fsdp", 4), microbatches=2)) for style in ("none", "bk")
    )
    for kind in ("all-gather", "reduce-scatter"):
        assert private.sent[kind] == plain.sent[kind]
    assert private.sent["all-reduce"] <= 2 * 48 * 2 * 3 // 4  # whether checks are due


def test_a_rank_of_many_holds_its_part():
    costs = {ranks: simulated(training("bk", "fsdp", ranks)) for ranks in (1, 8)}
    # Weights and two moments; what cannot be divided evenly is filled up.
    whole = 12 * costs[1].trained
    assert costs[1].held == pytest.approx(whole, rel=CLOSE)
    assert whole / 8 < costs[8].held < 1.1 * whole / 8
    assert costs[8].peak < costs[1].peak


def narrow():
    config = GPT2Config(
        vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=0,
        n_embd=128, n_layer=4, n_head=2, tie_word_embeddings=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def test_a_storage_counts_until_nobody_refers_to_it_and_as_large_as_it_is_now():
    meter = Meter()
    with meter:
        a = torch.zeros(1000)
        view = a[10:]
        assert meter.now == 4000
        b = a + 1
        assert meter.now == meter.peak == 8000
        b.untyped_storage().resize_(0)
        assert meter.now == 4000
        b.untyped_storage().resize_(12_000)
        assert (meter.now, meter.peak) == (16_000, 16_000)
        del a
        assert meter.now == 16_000
        del view, b
        assert (meter.now, meter.peak) == (0, 16_000)


def test_what_is_asked_of_fake_numbers_is_answered_as_where_all_goes_well():
    with FakeTensorMode(), PretendedAnswers():
        x = torch.randn(4, 3)
        assert bool(torch.isfinite(x).all())
        assert not bool(torch.isnan(x).any())
        assert float(x.norm()) == 0.0
        assert float(x.sum()) == 1.0
        assert len((x[:, 0] > 0).nonzero()) == 4
        assert int(torch.tensor(7)) == 7
