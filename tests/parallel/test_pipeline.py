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
from dpft.privacy.shapes import FixedShapes
from dpft.privacy.spec import Partition
from dpft.tasks.objectives.causal import Causal, CausalExample
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.units import Records
from tests.parallel.ranks import fake_ranks, together

VOCAB, LONGEST, RECORDS, LAYERS, WIDTH = 23, 24, 12, 6, 12
KEY = bytes(range(32))
TOKENS = 96  # microbatches of three rows or fewer
SHARED = {
    "attn_implementation": "sdpa", "bos_token_id": 0, "eos_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip


def gpt2(layers=LAYERS, tied=False):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LONGEST, n_embd=WIDTH, n_layer=layers, n_head=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SHARED | {"tie_word_embeddings": tied},
    )  # fmt: skip
    return GPT2LMHeadModel(config).double().train()


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=16, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=1, **SHARED,
    )  # fmt: skip
    return LlamaForCausalLM(config).double().train()


def gpt2_lora():
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(gpt2(tied=True), config).double()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, and so would be half of the gradients
            torch.nn.init.normal_(parameter, std=0.2)
    return model


THRESHOLDS = {"gpt2": 3.2, "llama": 1.6, "gpt2 lora": 0.11}
MODELS = {"gpt2": gpt2, "llama": llama, "gpt2 lora": gpt2_lora}


def data(batch_size=8):
    """Records of two shapes."""
    drawn = np.random.default_rng(3)
    examples = []
    for record in range(RECORDS):
        length = int(drawn.integers(4, 15)) + 9 * (record % 3 == 0)
        ids = tuple(int(i) for i in drawn.integers(1, VOCAB, length))
        examples.append(CausalExample(ids[:2], ids[2:]))
    objective = Causal(SimpleNamespace(eos_token_id=0), LONGEST)  # type: ignore[arg-type]
    shapes = FixedShapes(16 * batch_size)  # cut by the number of tokens alone
    return Records(objective, examples, shapes)


def batches(units, drawn, step=0):
    return [units.batch(piece, step) for piece in units.microbatches(drawn, TOKENS)]


def one_process(name, style, drawn, **options):
    """Sums, norms of each microbatch, the share of clipped records, and counts of thresholds."""
    model, units = MODELS[name](), data()
    clipper = make_clipper(model, style, **options)
    norms, factors = [], []
    for batch in batches(units, drawn):
        losses = units.losses(model, batch)
        clipper.backward(losses, rows=batch.rows_per_unit, real=batch.real)
        norms.append(clipper.norms.numpy())
        factors.append(clipper.factors.numpy())
    sums = {
        n: np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        for n, p in clipper.parameters.items()
    }
    norms = np.concatenate(norms) if norms else np.empty((0, len(clipper.groups)))
    assert np.isfinite(norms).all()
    clipped = float((np.concatenate(factors) < 1).mean()) if factors else 0.0
    return sums, norms, clipped, clipper.policy.below.numpy() if clipper.policy.rule else None


class Counted:
    """Bytes that this rank gives to every kind of collective, and to messages."""

    def __init__(self):
        self.bytes = Counter()
        for name in dir(dist):
            if name.startswith(("all_", "reduce", "broadcast", "gather", "scatter")):
                setattr(dist, name, self.counting(name, getattr(dist, name)))
        for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
            setattr(ClippedStage, name, self.sending(getattr(ClippedStage, name)))

    def counting(self, name, function):
        def counted(*arguments, **named):
            tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
            self.bytes[name] += sum(x.numel() * x.element_size() for x in tensors)
            return function(*arguments, **named)

        return counted

    def sending(self, function):
        def counted(stage, chunk):
            ops = function(stage, chunk)
            self.bytes["sent"] += sum(x.tensor.numel() * x.tensor.element_size() for x in ops)
            return ops

        return counted


def several_ranks(cohort, cases):
    """Of each case sums and norms of this rank's stages, and what it sent."""
    counted, held = Counted(), []
    for name, style, size in cases:
        ranks = Pipeline(2 * size)
        model, units = MODELS[name](), data()
        whole = make_clipper(model, style, cohort=ranks, **options_of(name, style, size))
        how = Partition("per_device", size)
        clippers, sums = pipelined(model, whole, how, ranks)
        counted.bytes.clear()
        observed = sums.add(units.losses, batches(units, ranks.share(DRAWN)))
        sent = dict(counted.bytes)
        clippers.collect()
        found = {n: p.grad.numpy() for n, p in clippers.parameters.items()}
        groups = [*clippers.own_groups]
        held.append((found, groups, np.concatenate([e.norms.numpy() for e in observed]), sent))
        clippers.close()
    return held


def options_of(name, style, size):
    several = Partition(style, size) if style == "per_device" else None
    return {"threshold": THRESHOLDS[name], "groups": several}


def hidden_bytes(drawn, count):
    """What non-private training sends: hidden states between stages, and their gradients."""
    shapes = Counter(batch.batch.tensors["input_ids"].shape for batch in batches(data(), drawn))
    rounds = {shape: -(-number // (2 * count)) for shape, number in shapes.items()}
    numbers = sum(n * 2 * count * shape.numel() * WIDTH for shape, n in rounds.items())
    return 2 * (count - 1) * numbers * 8


DRAWN = list(range(11))
CASES = [
    *(("gpt2", "per_device"), ("llama", "per_device"), ("gpt2 lora", "per_device")),
    ("gpt2 lora", "per_layer"),
]


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sums_are_those_of_one_process_and_no_norm_travels(size):
    launched = together(several_ranks, size, [(*case, size) for case in CASES])
    for case, ranks in zip(CASES, zip(*launched, strict=True), strict=True):
        name, style = case
        sums, norms, clipped, _ = one_process(name, style, DRAWN, **options_of(*case, size))
        assert 0.2 < clipped < 1
        seen, sent = {}, Counter()
        for found, groups, own_norms, by_kind in ranks:
            seen |= found
            sent.update(by_kind)
            np.testing.assert_allclose(own_norms, norms[:, groups], rtol=1e-10)
        same(seen, sums)
        # What any pipeline sends.
        assert sent == {"sent": hidden_bytes(DRAWN, size)}, case


def same(found, expected, rtol=1e-10, atol=1e-12):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=atol, err_msg=name)


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


def poisoned(cohort, drawn):
    ranks = Pipeline()
    model, units = gpt2(), data()
    units.__class__ = Poisoned
    whole = make_clipper(
        model, "per_device", cohort=ranks, threshold=3.2, groups=Partition("per_device", 2)
    )
    clippers, sums = pipelined(model, whole, Partition("per_device", 2), ranks)
    sums.add(units.losses, batches(units, drawn))
    clippers.collect()
    return {n: p.grad.numpy() for n, p in clippers.parameters.items()}


def test_a_record_is_dropped_on_all_stages():
    """Of an infinite loss the last stage alone knows, and its gradient may be as any other's."""
    drawn = list(range(11))
    ranks = together(poisoned, 2, drawn)
    rest = [record for record in drawn if record not in POISON]
    devices = Partition("per_device", 2)
    sums, *_ = one_process("gpt2", "per_device", rest, threshold=3.2, groups=devices)
    same({n: total for found in ranks for n, total in found.items()}, sums)


def mechanism_of(clipper, allocation):
    sizes = tuple(sum(clipper.sizes[n] for n in g.parameters) for g in clipper.groups)
    return Mechanism(RECORDS, 8, 4, 0.7, (1.0,), 1e-3).over(
        tuple(group.threshold for group in clipper.groups),
        allocation=allocation,
        dimensions=sizes,
        quantiles=clipper.policy.rule,
        count_noise=None if clipper.policy.rule is None else 3.0,
    )


# --- what goes wrong ---


class Mixing(Records):
    """Losses as they are, and gradients that grow with the number of records in a batch."""

    def losses(self, model, batch):
        losses = super().losses(model, batch)
        return losses.detach() + (losses - losses.detach()) * batch.real.sum()


class Scaled(Records):
    """Losses that grow with the number of records in a batch."""

    def losses(self, model, batch):
        return super().losses(model, batch) * (1 + 0.1 * batch.real.sum())


def checked(cohort, case):
    """What the check of records that see each other says on this rank, and the sums it leaves."""
    ranks = Pipeline()
    made, units = gpt2(), data()
    units.__class__ = {"losses": Scaled, "gradients": Mixing}.get(case, Records)
    whole = make_clipper(
        made, "per_device", threshold=100.0, cohort=ranks, groups=Partition("per_device", 2)
    )
    clippers, sums = pipelined(made, whole, Partition("per_device", 2), ranks)
    try:
        check_independence(units, sums.stage, clippers, TOKENS, sums)
    except ModelError as error:
        return str(error)
    finally:
        assert all(parameter.grad is None for parameter in clippers.parameters.values())
        assert not clippers.unfinished
    return ""


def all_checked(cohort, cases):
    return [checked(cohort, case) for case in cases]


SEEN = {
    "none": ["", ""],
    "losses": ["GPT2LMHeadModel the loss of a record", "(losses differ)"],
    "gradients": ["(gradients differ)"] * 2,
}


def test_stages_find_records_that_see_each_other():
    for told, of_rank in zip(
        together(all_checked, 2, list(SEEN)), zip(*SEEN.values(), strict=True), strict=True
    ):
        for found, expected in zip(told, of_rank, strict=True):
            assert expected in found
            assert bool(found) == bool(expected)


def broken_off(cohort):
    """One stage fails in the middle of a round."""
    ranks = Pipeline()
    model, units = gpt2(), data()
    how = Partition("per_device", 2)
    whole = make_clipper(model, "per_device", threshold=0.5, groups=how, cohort=ranks)
    clippers, sums = pipelined(model, whole, how, ranks)
    noise = mechanism_of(clippers, "global").noise(KEY, clippers)
    calls = []

    def losses(model, batch):
        calls.append(batch)
        if cohort.rank == 1 and len(calls) == 2:
            raise ZeroDivisionError("of a test")
        return units.losses(model, batch)

    said = []
    try:
        with replicas.together(ranks, "step 0"):
            sums.add(losses, batches(units, range(11)))
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


DEVICES = {"groups": Partition("per_device", 2)}
REFUSED = [
    ({"style": "by_type"}, {}, "lies on the stages [0, 1] of the pipeline"),
    ({"style": "bk"}, {}, "lies on the stages [0, 1] of the pipeline"),
    ({"style": "ghost"}, {}, "plan 'ghost' in a pipeline; expected one that takes one backward"),
    (DEVICES, {"count": 3}, "3 devices of clip=per_device for 2 stages"),
    (DEVICES, {"microbatches": 1}, "expected 2 or more"),
]


@pytest.mark.parametrize(("options", "settings", "message"), REFUSED)
def test_what_a_pipeline_cannot_do_is_refused(options, settings, message):
    given, model = {"style": "per_device"} | options, gpt2()
    how = Partition("per_device", settings.get("count", 2))
    with fake_ranks(2):
        ranks = Pipeline(settings.get("microbatches"))
        whole = make_clipper(model, given.pop("style"), threshold=0.5, cohort=ranks, **given)
        with pytest.raises(ConfigError, match=re.escape(message)):
            pipelined(model, whole, how, ranks)
