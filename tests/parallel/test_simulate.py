"""One fake rank of many: its memory and its messages are those of true ranks."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, ModelError
from dpft.config.schema import parse
from dpft.models.load import find
from dpft.parallel.sharded import Shards, shard
from dpft.parallel.simulate import Answers, Meter, Training, sent, simulated, steps
from dpft.privacy import make_clipper
from dpft.training.plan import Shape, plan, training_of
from tests.parallel.ranks import together

# Beside what is counted, what Python frees a moment later.
CLOSE = 0.01


def run_of(*words):
    return parse(compose(["model=random-gpt2", *words]))


def training(style="bk", layout="data", ranks=1, **options):
    private = style != "none"
    shape = Shape(layout, ranks, batch=3, length=20, **options)
    return training_of(run_of(f"clip={style if private else 'bk'}"), shape, private)


def same(simulation, true):
    assert simulation.held == pytest.approx(true.held, rel=CLOSE)
    assert (simulation.checked or 0) == pytest.approx(true.checked or 0, rel=CLOSE)
    assert simulation.peaks == pytest.approx(true.peaks, rel=CLOSE)
    assert simulation.messages == true.messages
    assert simulation.calls == true.calls


@pytest.mark.parametrize("style", ["none", "bk", "per_layer", "ghost"])
def test_memory_of_one_process_is_that_of_true_tensors(style):
    chosen = training(style)
    meter = Meter()
    with meter:
        true = steps(chosen, meter, chosen.build())
    same(simulated(chosen, on_gpu=False), true)


def true_steps(cohort, cases):
    mesh = dist.init_device_mesh("cpu", (cohort.size,))
    costs = []
    for case in cases:
        meter = Meter(ranks=cohort.size)
        with meter:
            chosen = training(*case, ranks=cohort.size)
            costs.append(steps(chosen, meter, chosen.build(), mesh))
    return costs


CASES = [("none", "fsdp"), ("bk", "fsdp"), ("per_layer", "fsdp"), ("per_layer_adaptive", "data")]


def test_memory_and_messages_of_two_ranks_are_those_of_true_ones():
    first, _ = together(true_steps, 2, CASES)
    for case, true in zip(CASES, first, strict=True):
        assert true.messages, case
        simulation = simulated(training(*case, ranks=2), on_gpu=False)
        # Gloo holds on to a message for a while after it was sent.
        message = 4 * simulation.trained
        for name, peak in true.peaks.items():
            assert 0.99 * simulation.peaks[name] <= peak <= simulation.peaks[name] + message
        if true.checked is not None:
            assert 0.99 * simulation.checked <= true.checked <= simulation.checked + message
        simulation = replace(simulation, peaks=true.peaks, checked=true.checked)
        same(simulation, true)


def test_shards_are_gathered_as_often_as_without_privacy():
    plain, private = (
        simulated(training(style, "fsdp", 4, microbatches=2)) for style in ("none", "bk")
    )
    for kind in ("all-gather", "reduce-scatter"):
        assert private.messages[kind] == plain.messages[kind]
    assert private.messages["all-reduce"] <= 2 * 48  # whether checks are due


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
        n_embd=128, n_layer=4, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def test_one_record_on_shards_holds_no_whole_gradients_beside_each_other(monkeypatch):
    monkeypatch.setattr("dpft.privacy.clipping.plans.batch._AT_ONCE", 1 << 15)

    def backward(style):
        shape = Shape("fsdp", 64, batch=1, length=32)
        chosen = training_of(run_of("clip=bk"), shape, style != "none")
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
    with FakeTensorMode(), Answers():
        x = torch.randn(4, 3)
        assert bool(torch.isfinite(x).all())
        assert not bool(torch.isnan(x).any())
        assert float(x.norm()) == 0.0
        assert float(x.sum()) == 1.0
        assert len((x[:, 0] > 0).nonzero()) == 4
        assert int(torch.tensor(7)) == 7


def test_bytes_that_a_rank_sends_are_the_least_that_each_collective_takes():
    messages = {"all-gather": 800, "reduce-scatter": 80, "all-reduce": 8, "broadcast": 0}
    assert sent(messages, 1) == {"all-gather": 0, "reduce-scatter": 0, "all-reduce": 0}
    assert sent(messages, 4) == {"all-gather": 600, "reduce-scatter": 60, "all-reduce": 12}


def test_a_process_that_is_in_a_group_is_refused():
    together(refused, 1)


def refused(cohort):
    with pytest.raises(RuntimeError, match="in a process group already"):
        simulated(Training(*[None] * 4))


def test_what_cannot_be_planned_is_refused_by_name():
    with pytest.raises(ConfigError, match="--length 1024 or less"):
        plan(run_of(), Shape("data", 1, 1, 1025))
    with pytest.raises(ConfigError, match="kind classifier"):
        plan(run_of("task=sst2"), Shape("data", 1, 1, 8))
    with pytest.raises(ConfigError, match="adapt is rgp"):
        plan(run_of("adapt=rgp"), Shape("data", 1, 1, 8))
    with pytest.raises(ModelError, match="sizes and no weights"):
        find(parse(compose(["model=gpt3-175b"])).model)


def dpft_plan(*words):
    return CliRunner().invoke(app, ["plan", "model=random-llama", *words, "--length", "16"])


def test_the_command_prints_both_sides_and_whether_they_fit():
    result = dpft_plan("adapt=lora", "parallel=fsdp", "--ranks", "2", "--memory", "0.001")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["fits", "in", "0.001", "GiB", "no", "no"] in lines
    assert any(line[:4] == ["MiB", "sent", "by", "all-gather"] for line in lines)
    answer = json.loads(dpft_plan("--json", "--checkpointing", "--batch", "2").output)
    assert answer["shape"]["batch"] == 2
    assert answer["private"]["trained"] == answer["plain"]["parameters"]
    assert "not simulated" in dpft_plan("parallel=fsdp", "parallel.shards=2").output
