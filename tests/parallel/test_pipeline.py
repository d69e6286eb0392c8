"""Pipelines: each stage's sums are those of one process, and no norm leaves it."""

import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dpft.config.errors import ConfigError, ModelError
from dpft.parallel import cohort as replicas
from dpft.parallel.cohort import Pipeline
from dpft.parallel.pipeline import ClippedStage, pipelined
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.sampling import FixedShapes
from dpft.privacy.spec import Partition
from dpft.tasks.objectives.generation import Causal, CausalExample
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.units import Records
from tests.parallel.ranks import fake_ranks, together

VOCAB, LONGEST, RECORDS, LAYERS, WIDTH = 23, 24, 12, 6, 12
TOKENS = 96  # microbatches of three rows or fewer
SHARED = {"attn_implementation": "sdpa", "bos_token_id": 0, "eos_token_id": 0}


def gpt2(layers=LAYERS, tied=False):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LONGEST, n_embd=WIDTH, n_layer=layers, n_head=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=tied, **SHARED,
    )  # fmt: skip
    return GPT2LMHeadModel(config).double().train()


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=16, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False, **SHARED,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().train()


def gpt2_lora():
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(gpt2(tied=True), config).double()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, and so would be half of the gradients
            torch.nn.init.normal_(parameter, std=0.2)
    return model


THRESHOLDS = {gpt2: 3.2, llama: 1.6, gpt2_lora: 0.11}


def data(kind=Records):
    """Records of two shapes."""
    drawn = np.random.default_rng(3)
    examples = []
    for record in range(RECORDS):
        length = int(drawn.integers(4, 15)) + 9 * (record % 3 == 0)
        ids = tuple(int(i) for i in drawn.integers(1, VOCAB, length))
        examples.append(CausalExample(ids[:2], ids[2:]))
    objective = Causal(SimpleNamespace(eos_token_id=0), LONGEST)  # type: ignore[arg-type]
    return kind(objective, examples, FixedShapes(128))  # cut by the number of tokens alone


def batches(units, drawn):
    return [units.batch(piece, 0) for piece in units.microbatches(drawn, TOKENS)]


def one_process(make, style, drawn, **options):
    """Sums, norms of each microbatch, and the share of clipped records."""
    model, units = make(), data()
    clipper = make_clipper(model, style, **options)
    norms, factors = [], []
    for batch in batches(units, drawn):
        losses = units.losses(model, batch)
        clipper.backward(losses, rows=batch.rows_per_unit, weights=batch.weights)
        norms.append(clipper.norms.numpy())
        factors.append(clipper.factors.numpy())
    return sums_of(clipper), np.concatenate(norms), float((np.concatenate(factors) < 1).mean())


def count_bytes(sent):
    """Count what this rank gives to every kind of collective, and to messages."""

    def collective(name, own):
        def counted(*given, **named):
            sent[name] += sum(x.nbytes for x in given if isinstance(x, torch.Tensor))
            return own(*given, **named)

        return counted

    def message(own):
        def counted(stage, chunk):
            ops = own(stage, chunk)
            sent["sent"] += sum(op.tensor.nbytes for op in ops)
            return ops

        return counted

    for name in dir(dist):
        if name.startswith(("all_", "reduce", "broadcast", "gather", "scatter")):
            setattr(dist, name, collective(name, getattr(dist, name)))
    for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
        setattr(ClippedStage, name, message(getattr(ClippedStage, name)))


def staged(model, style="per_device", threshold=3.2, size=2, microbatches=None):
    """The clipper of this rank's stage, and what adds up the sums of all."""
    ranks, how = Pipeline(microbatches), Partition("per_device", size)
    options = options_of(style, threshold, size)
    return pipelined(model, make_clipper(model, style, cohort=ranks, **options), how, ranks)


def options_of(style, threshold, size):
    several = Partition(style, size) if style == "per_device" else None
    return {"threshold": threshold, "groups": several}


def sums_of(clippers):
    clippers.collect()
    return {name: p.grad.numpy() for name, p in clippers.parameters.items()}


def several_ranks(cohort, cases):
    """Of each case sums and norms of this rank's stages, and what it sent."""
    sent, held = Counter(), []
    count_bytes(sent)
    for make, style, size in cases:
        units = data()
        clippers, sums = staged(make(), style, THRESHOLDS[make], size, 2 * size)
        sent.clear()
        observed = sums.add(units.losses, batches(units, DRAWN))
        own, norms = dict(sent), np.concatenate([each.norms.numpy() for each in observed])
        held.append((sums_of(clippers), [*clippers.own_groups], norms, own))
        clippers.close()
    return held


def hidden_bytes(drawn, count):
    """What non-private training sends: hidden states between stages, and their gradients."""
    shapes = Counter(batch.batch.tensors["input_ids"].shape for batch in batches(data(), drawn))
    rounds = {shape: -(-number // (2 * count)) for shape, number in shapes.items()}
    numbers = sum(n * 2 * count * shape.numel() * WIDTH for shape, n in rounds.items())
    return 2 * (count - 1) * numbers * 8


DRAWN = list(range(11))
CASES = [*((make, "per_device") for make in THRESHOLDS), (gpt2_lora, "per_layer")]


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_those_of_one_process_and_no_norm_travels(size):
    launched = together(several_ranks, size, [(*case, size) for case in CASES])
    for case, ranks in zip(CASES, zip(*launched, strict=True), strict=True):
        make, style = case
        options = options_of(style, THRESHOLDS[make], size)
        sums, norms, clipped = one_process(make, style, DRAWN, **options)
        assert 0.2 < clipped < 1
        seen, sent = {}, Counter()
        for found, groups, own_norms, by_kind in ranks:
            seen |= found
            sent.update(by_kind)
            np.testing.assert_allclose(own_norms, norms[:, groups], rtol=1e-10)
        same(seen, sums)
        # What any pipeline sends.
        assert sent == {"sent": hidden_bytes(DRAWN, size)}, case


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-12, err_msg=name)


class Poisoned(Records):
    """Two records whose losses are not finite: of one the gradient is, of the other it is not."""

    def losses(self, model, batch):
        losses = super().losses(model, batch)
        ids = batch.batch.tensors["input_ids"]
        ends = (torch.tensor(self._examples[record].target[-4:-1]) for record in POISON)
        infinite, undefined = ((ids[:, -3:] == end).all(1) for end in ends)
        losses = losses + torch.where(infinite, torch.inf, 0.0)
        return losses * torch.where(undefined, torch.nan, 1.0)


POISON = (2, 7)


def poisoned(cohort):
    units = data(Poisoned)
    clippers, sums = staged(gpt2())
    sums.add(units.losses, batches(units, DRAWN))
    return sums_of(clippers)


def test_a_record_is_dropped_on_all_stages():
    """Of an infinite loss the last stage alone knows, and its gradient may be as any other's."""
    ranks = together(poisoned, 2)
    rest = [record for record in DRAWN if record not in POISON]
    sums, *_ = one_process(gpt2, "per_device", rest, **options_of("per_device", 3.2, 2))
    same({n: total for found in ranks for n, total in found.items()}, sums)


# --- what goes wrong ---


class Mixing(Records):
    """Losses as they are, and gradients that grow with the number of records in a batch."""

    def losses(self, model, batch):
        losses = super().losses(model, batch)
        return losses.detach() + (losses - losses.detach()) * batch.weights.sum()


class Scaled(Records):
    """Losses that grow with the number of records in a batch."""

    def losses(self, model, batch):
        return super().losses(model, batch) * (1 + 0.1 * batch.weights.sum())


def checked(kind):
    """What the check of records that see each other says on this rank."""
    clippers, sums = staged(gpt2(), threshold=100.0)
    try:
        check_independence(data(kind), sums.stage, clippers, TOKENS, sums)
    except ModelError as error:
        return str(error)
    finally:
        assert all(parameter.grad is None for parameter in clippers.parameters.values())
        assert not clippers.unfinished
    return ""


def all_checked(cohort):
    return [checked(kind) for kind in (Records, Scaled, Mixing)]


def test_stages_find_records_that_see_each_other():
    first, second = together(all_checked, 2)
    assert first[0] == second[0] == ""
    assert "GPT2LMHeadModel the loss of a record" in first[1]
    assert "(losses differ)" in second[1]
    assert "(gradients differ)" in first[2]
    assert "(gradients differ)" in second[2]


def broken_off(cohort):
    """One stage fails in the middle of a round."""
    units, calls = data(), []
    clippers, sums = staged(gpt2())
    thresholds = tuple(group.threshold for group in clippers.groups)
    mechanism = Mechanism(RECORDS, 8, 4, 0.7, (1.0,), 1e-3).over(thresholds)
    noise = mechanism.noise(bytes(32), clippers)

    def losses(model, batch):
        calls.append(batch)
        if cohort.rank == 1 and len(calls) == 2:
            raise ZeroDivisionError("of a test")
        return units.losses(model, batch)

    said = []
    try:
        with replicas.together(clippers.cohort, "step 0"):
            sums.add(losses, batches(units, DRAWN))
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
        if cohort.rank == 1:
            dist.destroy_process_group()  # as at the end of the process
    with pytest.raises(RuntimeError, match="broke off"):
        noise.privatise_(0)
    cohort.barrier = lambda: None  # of the test's own: there is no group any more
    return said


def test_a_stage_that_fails_ends_all_at_once():
    first, second = together(broken_off, 2)
    assert second == ["ZeroDivisionError: of a test"]
    assert first[0].startswith("RankGoneError: another rank does not answer")


REFUSED = [
    ({"style": "by_type"}, "lies on the stages [0, 1] of the pipeline"),
    ({"style": "bk"}, "lies on the stages [0, 1] of the pipeline"),
    ({"style": "ghost"}, "plan 'ghost' in a pipeline; expected one that takes one backward"),
    ({"size": 3}, "3 devices of clip=per_device for 2 stages"),
    ({"microbatches": 1}, "expected 2 or more"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_a_pipeline_cannot_do_is_refused(options, message):
    with fake_ranks(2), pytest.raises(ConfigError, match=re.escape(message)):
        staged(gpt2(), **options)
