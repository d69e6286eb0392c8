"""Prefix: right positions whatever the padding, and decoding as in training."""

import pytest
import torch

from dpft.config.adapt import Adapt
from dpft.config.decode import Decode
from dpft.config.errors import ConfigError, ModelError
from dpft.models.adapt import adapt
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.tasks.e2e import E2E
from dpft.tasks.objectives.causal import CausalExample, collate, token_nll
from dpft.tasks.objectives.decode import decode
from dpft.tasks.own_texts import LanguageModeling, TextToText
from dpft.tasks.personachat import PersonaChat
from dpft.tasks.samsum import SAMSum
from tests.models.adapted import adapted

CAUSAL = Needs("causal")
EXAMPLES = [
    CausalExample((5, 6, 7), (8, 9, 10, 0)),
    CausalExample(tuple(range(11, 23)), (8, 0)),
    CausalExample((4, 3), (12, 13, 0)),
]


@pytest.fixture(scope="module")
def tiny():
    from dpft.config.schema import Model

    loaded = load_model(Model("tiny", "bundled:tiny"), CAUSAL, 0)
    behind = adapt(loaded, Adapt("prefix", length=4, hidden=16), CAUSAL, 0)
    behind.model.eval()
    return behind


def base(behind):
    return behind.model.get_base_model()


@torch.no_grad()
def test_token_k_has_position_n_plus_k_whatever_the_padding(tiny):
    seen = []
    embedding = base(tiny).transformer.wpe
    handle = embedding.register_forward_pre_hook(lambda m, args: seen.append(args[0].clone()))
    batch = collate(EXAMPLES)
    token_nll(tiny.model, batch)
    handle.remove()
    mask = batch.tensors["attention_mask"]
    for positions, row in zip(seen[0], mask, strict=True):
        text = positions[-len(row) :][row == 1]
        assert text.tolist() == list(range(4, 4 + len(text)))


@torch.no_grad()
def test_a_loss_in_a_padded_batch_is_the_loss_alone(tiny):
    together = token_nll(tiny.model, collate(EXAMPLES)).sum(1)
    alone = [token_nll(tiny.model, collate([example])).sum() for example in EXAMPLES]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_one_record_without_padding_is_what_peft_computes(tiny):
    from peft import PeftModelForCausalLM

    ids = torch.tensor([EXAMPLES[0].prompt])
    mask = torch.ones_like(ids)
    ours = tiny.model(input_ids=ids, attention_mask=mask, position_ids=mask.cumsum(1) - 1).logits
    theirs = PeftModelForCausalLM.forward(tiny.model, input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def by_hand(model, prompt, steps, end):
    """Greedy: the whole text anew for each token, without a cache and without padding."""
    ids = list(prompt)
    for _ in range(steps):
        tensor = torch.tensor([ids])
        mask = torch.ones_like(tensor)
        logits = model(input_ids=tensor, attention_mask=mask, position_ids=mask.cumsum(1) - 1)
        ids.append(int(logits.logits[0, -1].argmax()))
        if ids[-1] == end:
            break
    return ids[len(prompt) :]


def test_decoding_with_padding_is_greedy_decoding_by_hand(tiny):
    end = tiny.tokenizer.eos_token_id
    prompts = [(*tiny.tokenizer.encode(text), end) for text in ("a b", "name : Loch Fyne", "x")]
    assert len({len(prompt) for prompt in prompts}) > 1
    with torch.no_grad():  # so large that texts differ from those of the plain model
        torch.manual_seed(1)
        for p in tiny.model.prompt_encoder.parameters():
            p.mul_(3.0)
    settings = Decode(beams=1, max_new_tokens=6)
    texts = decode(tiny.model, tiny.tokenizer, prompts, settings, seed=0)
    hand = [by_hand(tiny.model, prompt, 6, end) for prompt in prompts]
    expected = tiny.tokenizer.batch_decode(hand, skip_special_tokens=True)
    assert [one.text for one in texts] == [text.strip() for text in expected]
    plain = decode(base(tiny), tiny.tokenizer, prompts, settings, seed=0)
    assert texts != plain


@torch.no_grad()
def test_beams_find_at_least_the_likelihood_of_the_greedy_text(tiny):
    """Every beam has what was trained: a beam's score is the likelihood of its text."""
    end = tiny.tokenizer.eos_token_id
    ids = torch.tensor([[end, end, 5, 6], [9, 8, 7, 6]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    options = {"input_ids": ids, "attention_mask": mask, "pad_token_id": end, "eos_token_id": None}

    def likelihoods(written):
        examples = [
            CausalExample(tuple(row[m == 1].tolist()), tuple(new.tolist()))
            for row, m, new in zip(ids, mask, written[:, 4:], strict=True)
        ]
        return -token_nll(tiny.model, collate(examples)).sum(1)

    greedy = tiny.model.generate(**options, max_new_tokens=5, do_sample=False)
    beams = tiny.model.generate(**options, max_new_tokens=5, num_beams=4, do_sample=False)
    assert torch.equal(beams[:, :4], ids)
    assert beams.shape == greedy.shape == (2, 9)
    assert (likelihoods(beams) >= likelihoods(greedy) - 1e-4).all()


def test_a_text_that_leaves_no_room_is_refused():
    case, _ = adapted("gpt2", "prefix")  # 16 positions, 3 of them trained
    ids = torch.ones(1, 14, dtype=torch.long)
    with pytest.raises(
        ModelError, match=r"17 positions; the model has 16: type task.max_length=13"
    ):
        case.model(input_ids=ids, attention_mask=ids, position_ids=ids.cumsum(1) - 1)
    with pytest.raises(ModelError, match=r"task\.max_length=13"):
        case.model.generate(input_ids=ids, attention_mask=ids, max_new_tokens=1)
    short = case.model.generate(
        input_ids=ids[:, :10], attention_mask=ids[:, :10], max_new_tokens=50, pad_token_id=0,
        eos_token_id=None, do_sample=False,
    )  # fmt: skip
    assert short.shape == (1, 13)


def test_that_a_text_may_leave_no_room_is_told_before_any_is_encoded(tiny):
    """Of 256 positions 4 are trained: a task is refused by its setting, or takes the rest."""
    assert E2E(max_length=252).objective(tiny).max_length == 252
    for task in (E2E, PersonaChat, TextToText, LanguageModeling):
        with pytest.raises(
            ConfigError,
            match=r"max_length is 253, .* for 252 tokens behind 4 trained positions; type "
            r"task.max_length=252, or a smaller adapt.length",
        ):
            task(max_length=253).objective(tiny)
    assert SAMSum(max_length=512).objective(tiny).max_length == 252
