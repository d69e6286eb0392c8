"""Decoding in batches is decoding one by one, by the run's settings alone."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from dpft.config.schema import Adapt, Decode, Model
from dpft.models.adapt import adapt
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.privacy.precision import as_on_gpu
from dpft.tasks.e2e import E2E
from dpft.tasks.objectives.decode import _Memory, decode
from tests.tasks.objectives.support import prompt_of

CAUSAL = Needs("causal")


@pytest.fixture(scope="module")
def prompts(tiny):
    task = E2E(source="sample", limit_eval=5)
    objective = task.objective(tiny)
    return [prompt_of(objective, i.record) for i in task.instances("test")]


@pytest.mark.parametrize("beams", [1, 3])
def test_batches_sorted_by_length_give_what_single_prompts_give(tiny, prompts, beams):
    assert len({len(p) for p in prompts}) > 1
    settings = Decode(beams=beams, max_new_tokens=12, batch_size=4)
    together = decode(tiny.model, tiny.tokenizer, prompts, settings, seed=0)
    alone = [decode(tiny.model, tiny.tokenizer, [p], settings, seed=0)[0] for p in prompts]
    assert together == alone
    assert all(one.text == one.text.strip() != "" for one in together)


def test_nothing_is_dropped_while_a_model_writes_that_is_being_trained(prompts):
    loaded = load_model(Model("tiny", "bundled:tiny", dropout=0.5), CAUSAL, seed=0)
    settings = Decode(beams=2, max_new_tokens=12)
    whole = decode(loaded.model.eval(), loaded.tokenizer, prompts, settings, 0)
    assert decode(loaded.model.train(), loaded.tokenizer, prompts, settings, 0) == whole


@pytest.mark.parametrize(("prefix", "width"), [(0, 251), (4, 251), (4, 243)])
def test_a_prompt_with_little_room_takes_none_from_others(tiny, prompts, prefix, width):
    """It leaves five of 256 positions, behind a prefix one, or nine where without it twelve."""
    loaded = tiny
    if prefix:
        plain = load_model(Model("tiny", "bundled:tiny"), CAUSAL, seed=0)
        loaded = adapt(plain, Adapt("prefix", length=prefix), CAUSAL, 0)
    # Without an end token, every text is as long as it may be.
    long = tuple((prompts[0] * 20)[:width])
    pair = [long, prompts[1]]
    settings = Decode(beams=1, max_new_tokens=12, batch_size=2)
    together = decode(loaded.model, loaded.tokenizer, pair, settings, 0)
    alone = [decode(loaded.model, loaded.tokenizer, [p], settings, 0)[0] for p in pair]
    assert together == alone
    assert len(loaded.tokenizer.encode(together[1].text)) > 9


@pytest.mark.parametrize("beams", [1, 2])
def test_a_text_says_whether_it_came_to_its_end(tiny, prompts, beams):
    short, long = (Decode(beams=beams, max_new_tokens=n, batch_size=4) for n in (3, 150))
    stopped = decode(tiny.model, tiny.tokenizer, prompts, short, 0)
    assert [text.finished for text in stopped] == [False] * len(prompts)
    done = decode(tiny.model, tiny.tokenizer, [(5, 6, 0)], long, 0)[0]
    width = len(tiny.tokenizer.encode(done.text))
    assert done.finished == (width < 140)


ADAPTED = [Adapt("full"), Adapt("lora", rank=2, alpha=4), Adapt("prefix", length=4)]


@pytest.mark.parametrize("how", ADAPTED)
def test_what_a_model_says_about_decoding_does_not_steer_it(prompts, how):
    """A chat model's file may ask for a temperature, or for no word pair twice."""
    tiny = adapt(load_model(Model("tiny", "bundled:tiny"), CAUSAL, seed=0), how, CAUSAL, 0)
    core = tiny.model if how.name == "full" else tiny.model.get_base_model()
    greedy = Decode(beams=1, max_new_tokens=12)
    sampled = Decode(beams=1, sample=True, top_p=0.9, max_new_tokens=12)
    expected = [decode(tiny.model, tiny.tokenizer, prompts, s, 0) for s in (greedy, sampled)]
    core.generation_config = theirs = GenerationConfig(
        do_sample=True, temperature=0.05, no_repeat_ngram_size=1, min_new_tokens=12,
        repetition_penalty=9.0, suppress_tokens=[1, 2, 3], eos_token_id=7, pad_token_id=7,
    )  # fmt: skip
    texts = [decode(tiny.model, tiny.tokenizer, prompts, s, 0) for s in (greedy, sampled)]
    assert texts == expected
    assert core.generation_config is theirs


def test_on_a_gpu_weights_are_in_bfloat16_while_a_model_writes(tiny, prompts):
    settings = Decode(beams=2, max_new_tokens=12, precision="bfloat16")
    before = [(weight, weight.data_ptr()) for weight in tiny.model.parameters()]
    types = set()
    hook = tiny.model.register_forward_hook(lambda *call: types.add(call[2].logits.dtype))
    with as_on_gpu():
        texts = decode(tiny.model, tiny.tokenizer, prompts, settings, 0)
    assert types == {torch.bfloat16}
    decode(tiny.model, tiny.tokenizer, prompts, settings, 0)
    hook.remove()
    assert types == {torch.bfloat16, torch.float32}
    after = [(weight, weight.data_ptr()) for weight in tiny.model.parameters()]
    assert [(id(weight), place) for weight, place in after] == [(id(w), p) for w, p in before]
    narrow = copy.deepcopy(tiny.model).bfloat16()
    assert decode(narrow, tiny.tokenizer, prompts, settings, 0) == texts


def test_a_batch_has_as_many_prompts_as_fit_on_a_gpu(tiny, prompts, monkeypatch):
    """By a pretended GPU, on which a prompt takes 10 bytes and 67 are free."""
    many = [(*prompts[0], token) for token in range(5, 22)]
    usual = decode(tiny.model, tiny.tokenizer, many, Decode(beams=1, max_new_tokens=4), 0)
    rows, generate = [], tiny.model.generate

    def counted(**how):
        rows.append(len(how["input_ids"]))
        return generate(**how)

    monkeypatch.setattr(tiny.model, "generate", counted)
    monkeypatch.setattr(Decode, "rows", 2)
    monkeypatch.setattr(_Memory, "limited", True)
    cuda = {
        "reset_peak_memory_stats": 0, "memory_allocated": 5, "max_memory_allocated": 25,
        "mem_get_info": (60, 100), "memory_reserved": 12,
    }  # fmt: skip
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    settings = Decode(beams=1, max_new_tokens=4)
    assert decode(tiny.model, tiny.tokenizer, many, settings, 0) == usual
    assert rows == [2, 6, 6, 3]
    sampled = Decode(beams=1, max_new_tokens=4, sample=True)
    decode(tiny.model, tiny.tokenizer, many, sampled, 0)
    assert rows[4:] == [2] * 8 + [1]
