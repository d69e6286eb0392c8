"""Decoding in batches is decoding one by one."""

import pytest

from dpft.config import Decode, Model
from dpft.decode import decode
from dpft.models import Needs, load_model
from dpft.tasks.e2e import E2E

CAUSAL = Needs("causal")


@pytest.fixture(scope="module")
def tiny():
    return load_model(Model("tiny", "bundled:tiny"), CAUSAL, seed=0)


@pytest.fixture(scope="module")
def prompts(tiny):
    task = E2E(source="sample", limit_eval=5)
    objective = task.objective(tiny)
    return [objective.encode_prompt(i.record) for i in task.instances("test")]


@pytest.mark.parametrize("beams", [1, 3])
def test_batches_sorted_by_length_give_what_single_prompts_give(tiny, prompts, beams):
    assert len({len(p) for p in prompts}) > 1
    settings = Decode(beams=beams, max_new_tokens=12, batch_size=4)
    together = decode(tiny.model, tiny.tokenizer, prompts, settings, seed=0)
    alone = [decode(tiny.model, tiny.tokenizer, [p], settings, seed=0)[0] for p in prompts]
    assert together == alone
    assert all(text == text.strip() != "" for text in together)


def test_equal_prompts_are_decoded_once(tiny, prompts):
    counts = []
    settings = Decode(beams=1, max_new_tokens=3)
    doubled = [prompts[0], prompts[1], prompts[0]]
    texts = decode(tiny.model, tiny.tokenizer, doubled, settings, 0, counts.append)
    assert counts == [3]  # in one batch
    assert texts[0] == texts[2]


def test_sampling_follows_the_seed_and_differs_from_greedy(tiny, prompts):
    settings = Decode(beams=1, sample=True, top_p=0.9, max_new_tokens=12)
    one, same, other = (
        decode(tiny.model, tiny.tokenizer, prompts, settings, seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_the_models_mode_is_kept(tiny, prompts):
    tiny.model.train()
    decode(tiny.model, tiny.tokenizer, prompts[:1], Decode(beams=1, max_new_tokens=1), 0)
    assert tiny.model.training
