"""Stages of a model: cut at blocks, under the names of the whole, and refused where unknown."""

import gc
import re

import peft
import pytest
import torch
from torch import nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.parallel.cohort import Pipeline
from dpft.parallel.stages import Share, cut, part_of
from dpft.privacy.spec import Partition
from dpft.tasks import load_task
from dpft.training.mechanisms import make_mechanism
from dpft.training.setup import assemble
from tests.parallel.ranks import together
from tests.privacy.small_models import build

LAYERS, VOCAB = 5, 17
LLAMA_LIKE = {
    "vocab_size": VOCAB, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": LAYERS,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "bos_token_id": 0,
    "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": False,
    "max_position_embeddings": 16,
}  # fmt: skip


def gpt2(tied=False):
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=8, n_layer=LAYERS, n_head=2, bos_token_id=0,
        eos_token_id=0, tie_word_embeddings=tied,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama():
    return LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE))


def qwen2():
    config = Qwen2Config(
        **LLAMA_LIKE, use_sliding_window=True, sliding_window=3, max_window_layers=2
    )
    assert len(set(config.layer_types)) == 2
    return Qwen2ForCausalLM(config)


def lora(model, *targets):
    how = {"init_lora_weights": False, "fan_in_fan_out": targets == ("c_attn",)}
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[*targets], **how))


def devices(count):
    return Partition("per_device", count)


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (gpt2, 2),
        (llama, 5),
        (lambda: MistralForCausalLM(MistralConfig(**LLAMA_LIKE, sliding_window=3)), 5),
        (qwen2, 2),
        (lambda: lora(gpt2(tied=True), "c_attn"), 2),
        (lambda: lora(llama(), "q_proj", "v_proj"), 5),
    ],
)
def test_stages_after_each_other_are_the_model(make, count):
    torch.manual_seed(0)
    model = make().eval()
    where = cut(model, devices(count))
    batch = {
        "input_ids": torch.randint(1, VOCAB, (3, 7)),
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [0, 1, 1, 1, 1, 1, 1]]),
    }
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)

    def logits(model):
        return model(**batch, use_cache=False, logits_to_keep=3).logits

    passed = ()
    for stage in range(count):
        share = Share(part_of(model, where, stage), stage == 0, stage == count - 1)
        passed = (share.run(logits, passed),)
        assert passed[0].shape == ((3, 7, where.width) if stage < count - 1 else (3, 3, VOCAB))
        assert passed[0].dtype == where.dtype
    torch.testing.assert_close(passed[0], logits(model), rtol=0, atol=0)


def test_blocks_without_a_trained_parameter_stay_with_the_ones_before_them():
    model = gpt2().requires_grad_(False)
    for number in (1, 3):
        model.transformer.h[number].requires_grad_(True)
    assert cut(model, devices(2)).starts == (0, 3)


def scorer():
    model = gpt2()
    model.scorer = nn.Linear(8, 1)
    return model


@pytest.mark.parametrize(
    ("model", "how", "message"),
    [
        (lambda: gpt2(tied=True), devices(2), "transformer.wte.weight is input embedding"),
        (lambda: GemmaForCausalLM(GemmaConfig(**LLAMA_LIKE)), devices(2), "where GemmaFor"),
        (lambda: build("roberta_mlm").model, devices(2), "where RobertaForMaskedLM can be cut"),
        (scorer, devices(2), "which stage scorer.weight of GPT2LMHeadModel belongs to"),
        (gpt2, devices(1), "1 pipeline stages of 5 blocks; expected two stages or more"),
        (gpt2, devices(7), "7 pipeline stages of 5 blocks"),
        (gpt2, Partition("per_device", patterns=(("*h*",), ("*w*",))), "clip.patterns=null"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(model, how, message):
    with pytest.raises((ConfigError, ValueError), match=re.escape(message)):
        cut(model(), how)


# --- a rank of a pipeline holds its own stage and no more ---

SETTINGS = ("task=text2text", "task.source=sample", "eps=3", "optim.batch_size=4", "optim.steps=1")


def bytes_alive():
    """Of all tensors of this process that have memory."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor) and not found.is_meta:
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def parts_of(*words, **more):
    run = parse(compose([*SETTINGS, *words]))
    return assemble(run, load_task(run.task), make_mechanism(run, 40), torch.device("cpu"), **more)


def assembled(cohort, words):
    """What this rank holds of a model: names, bytes, and the digest of the whole."""
    before, ranks = bytes_alive(), Pipeline()
    parts = parts_of("parallel=pipeline", *words, cohort=ranks)
    held = {n: p.numel() for n, p in parts.loaded.model.named_parameters() if not p.is_meta}
    buffers = sum(b.numel() * b.element_size() for b in parts.loaded.model.buffers())
    alive = bytes_alive() - before - buffers
    return held, alive, parts.digest, dict(ranks.owners)


# With LoRA the table is frozen and in two stages.
@pytest.mark.parametrize(("word", "shared"), [("model.tied=false", 0), ("adapt=lora", 1)])
def test_a_rank_holds_its_own_stage_and_nothing_else(word, shared):
    words = ("model=tiny", "clip=per_device", "clip.count=2", word)
    ranks = together(assembled, 2, words)
    whole = parts_of(*words)
    sizes = {n: p.numel() for n, p in whole.loaded.model.named_parameters()}
    owners = ranks[0][3]
    assert owners.keys() == whole.clipper.parameters.keys()
    for rank, (held, alive, digest, _) in enumerate(ranks):
        trained = {name for name, owner in owners.items() if owner == rank}
        assert held.keys() & owners.keys() == trained
        assert held == {name: sizes[name] for name in held}
        # Little beside them: what a clipper notes of thresholds and the like.
        assert 4 * sum(held.values()) <= alive < 4 * sum(held.values()) + 4096
        assert digest == whole.digest  # by which a continued run knows its model
    assert ranks[0][0].keys() | ranks[1][0].keys() == sizes.keys()
    assert len(ranks[0][0].keys() & ranks[1][0].keys()) == shared
    whole.clipper.close()
