"""One fake rank of many: its memory and its messages are those of true ranks."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.config.compose import compose
from dpft.config.schema import Parallel, parse
from dpft.parallel.metering import Meter, sent
from dpft.parallel.pretended import PretendedAnswers
from dpft.parallel.sharded import Shards, shard
from dpft.parallel.simulate import Training, simulated, steps, world
from dpft.privacy import make_clipper
from dpft.training.planned_step import StepShape, shape_of, training_of
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

if "DPFT_LONG" in os.environ:
    CASES[2] += [
        ("none", "fsdp", {}),
        ("per_device", "pipeline", {"schedule": "1f1b", "microbatches": 2}),
    ]
    copies = {"length": 2, "schedule": "gpipe", "microbatches": 2}
    CASES[4].append(("per_layer", "pipeline", copies))


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


def test_a_rank_of_copies_sends_within_its_copy_and_beside_it():
    whole, halves = (
        simulated(training("bk", "fsdp", 4, **options), check=False)
        for options in ({}, {"shards": 2})
    )
    flags = 48 * 2 * 3 // 4  # among all four, on what they do
    # Half of a message of two parts, three quarters of one of four.
    for kind in ("all-gather", "reduce-scatter"):
        assert 2 * halves.sent[kind] == pytest.approx(4 * whole.sent[kind] / 3, rel=1e-3)
    # A rank's sums are of a half, and go to the other copy.
    assert halves.sent["all-reduce"] - flags == halves.sent["reduce-scatter"]
    assert halves.noise == 2 * whole.noise
    assert halves.checked is None


def narrow():
    config = GPT2Config(
        vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=0,
        n_embd=128, n_layer=4, n_head=2, tie_word_embeddings=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def test_one_record_on_shards_holds_no_whole_gradients_beside_each_other(monkeypatch):
    monkeypatch.setattr("dpft.privacy.clipping.plans.batch._AT_ONCE", 1 << 15)

    def backward(style):
        shape = StepShape(Parallel("fsdp"), 16, batch=1, length=32)
        chosen = training_of(run_of(f"clip={style}"), shape)
        return simulated(replace(chosen, build=narrow)).peaks["backward"]

    # Beside the gradients themselves at most a message of them.
    assert backward("bk") <= backward("none") + 4 * 2 * (1 << 16)


def sums_of_one_record_each(cohort):
    """What book-keeping leaves where each rank has one of two records; None: one process both."""
    torch.manual_seed(0)
    model = narrow().double()
    rows = torch.randint(64, (2, 32))
    if cohort is not None:
        rows = rows[cohort.rank :][:1]
        shard(model)
    clipper = make_clipper(model, "bk", threshold=0.1, cohort=cohort and Shards())
    logits = model(input_ids=rows, use_cache=False).logits.transpose(1, 2)
    clipper.backward(F.cross_entropy(logits, rows, reduction="none").mean(1))
    return {name: whole_of(p.grad) for name, p in clipper.parameters.items()}


def whole_of(grad):
    return (grad.full_tensor() if isinstance(grad, DTensor) else grad).numpy()


def test_one_record_on_each_shard_has_the_sums_of_one_process():
    expected = sums_of_one_record_each(None)
    for got in together(sums_of_one_record_each, 2):
        for name, total in expected.items():
            np.testing.assert_allclose(got[name], total, rtol=1e-10, atol=1e-14, err_msg=name)


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


def test_bytes_that_a_rank_sends_are_the_least_that_each_collective_takes():
    messages = {"all-gather": 800, "reduce-scatter": 80, "all-reduce": 8, "broadcast": 0}
    least = [sent(kind, size, 4) for kind, size in messages.items()]
    assert least == [600, 60, 12, 0]
    assert [sent(kind, size, 1) for kind, size in messages.items()] == [0, 0, 0, 0]
    assert sent("send", 5, 4) == 5


def test_a_process_that_is_in_a_group_is_refused():
    together(refused, 1)


def refused(cohort):
    with pytest.raises(RuntimeError, match="in a process group already"):
        simulated(Training(*[None] * 5))
