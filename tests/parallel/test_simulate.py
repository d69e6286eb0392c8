"""One fake rank of many: its memory and its messages are those of true ranks."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.parallel.metering import Meter, Operation, Operations
from dpft.parallel.pretended import PretendedAnswers
from dpft.parallel.simulate import simulated, steps, world
from dpft.training.planned_step import shape_of, training_of
from tests.parallel.ranks import together

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


# Operations are counted as paper and pencil count them.


def flops(counted):
    """Floating-point operations of products, by precision."""
    found = Counter()
    for operation, times in counted.items():
        if operation.precision:
            found[operation.precision] += times * operation.flops
    return found


def counted(work):
    with Operations() as operations:
        work()
    return operations.counted


def test_a_product_is_two_operations_for_each_pair_of_factors():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    assert counted(lambda: a @ b) == {Operation("float32", 2 * 3 * 4 * 5, 4 * (12 + 20 + 15)): 1}
    half = counted(lambda: a.bfloat16() @ b.bfloat16())
    assert flops(half) == {"bfloat16": 120}
    both = half + counted(lambda: torch.bmm(a[None], b[None]))
    assert flops(both) == {"bfloat16": 120, "float32": 120}


def test_products_count_by_the_type_of_their_factors():
    """Whatever is added to, and whatever the result is in."""
    half, stacked = torch.ones(4, 5).bfloat16(), torch.ones(2, 4, 5).bfloat16()
    out = torch.ones(4, 4)
    with FakeTensorMode(allow_non_fake_inputs=True), Operations() as operations:
        torch.mm(half, half.t())
        torch.bmm(stacked, stacked.mT, out_dtype=torch.float32)
        torch.addmm(out, half, half.t(), out_dtype=torch.float32, out=out)
        torch.addmm(torch.ones(4, 3), torch.ones(4, 5), torch.ones(5, 3))
        torch.relu(half)
    once = 2 * 4 * 4 * 5
    assert flops(operations.counted) == {"bfloat16": once + 2 * once + once, "float32": 120}


def test_attention_leaves_out_what_is_masked():
    q = torch.ones(2, 3, 64, 16, requires_grad=True)
    whole = flops(counted(lambda: F.scaled_dot_product_attention(q, q, q)))
    assert whole == {"float32": 2 * 2 * 2 * 3 * 64 * 64 * 16}
    k = q[:, :1].detach()  # one head of keys for three of queries computes as much
    grouped = flops(counted(lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True)))
    assert grouped == whole
    half = flops(counted(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)))
    assert 2 * half["float32"] == whole["float32"]

    def both():
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

    # Five products in the backward, one of them the forward's again.
    assert flops(counted(both))["float32"] == half["float32"] * 7 / 2


MOVED = {
    "a view": (lambda x, ids: x.t()[1:], 0),
    "a question": (lambda x, ids: torch.ops.prim.device.default(x), 0),
    "room": (lambda x, ids: torch.empty_like(x), 0),
    "zeros": (lambda x, ids: torch.zeros(10), 40),
    "a sum of two": (lambda x, ids: x + x, 2 * 4000),
    "in place": (lambda x, ids: x.mul_(2), 2 * 4000),
    "an expanded one": (lambda x, ids: x[:1].expand(100, 10) * 2.0, 40 + 4000),
    "a few rows": (lambda x, ids: F.embedding(ids, x), 2 * 80),
    "a copy": (lambda x, ids: torch.zeros(10).copy_(x[0]), 40 + 80),
}


@pytest.mark.parametrize("name", MOVED)
def test_bytes_are_those_that_an_operation_reads_and_writes(name):
    work, expected = MOVED[name]
    x, ids = torch.ones(100, 10), torch.tensor([3, 4])
    found: Counter[Operation] = counted(lambda: work(x, ids))
    assert sum(operation.moved * times for operation, times in found.items()) == expected
