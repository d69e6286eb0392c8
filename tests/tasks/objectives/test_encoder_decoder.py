"""Source into the encoder, target into the decoder, and a loss that is the record's own."""

import pytest
import torch

from dpft.config.schema import Decode, Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.tasks.objectives.decode import decode
from dpft.tasks.objectives.generation import EncoderDecoder
from dpft.tasks.objectives.record_types import TextRecord

RECORDS = [
    TextRecord(("name : a b c", "one two three four"), "ok then"),
    TextRecord(("hello",), "good"),
    TextRecord(("one two",), "name : a b c d e f g h"),
]


@pytest.fixture(scope="module", params=["t5", "bart"])
def loaded(request):
    found = load_model(Model("x", f"random:{request.param}"), Needs("causal", source=True), seed=0)
    found.model.eval()
    with torch.no_grad():
        for p in found.model.parameters():
            p.add_(0.1 * torch.randn_like(p))  # else all tokens are as likely, and rounding decides
    return found


def objective_of(loaded, **settings):
    start = loaded.model.config.decoder_start_token_id
    return EncoderDecoder(loaded.tokenizer, **{"max_length": 64, **settings}, start=start)


def spelled(loaded, record, **settings):
    """The tokens of source and target, as text."""
    example = objective_of(loaded, **settings).encode(record)
    return tuple(loaded.tokenizer.decode(ids) for ids in (example.prompt, example.target))


def test_texts_have_the_tokens_around_them_that_the_tokenizer_puts_there(loaded):
    first = "<s>" if loaded.tokenizer.bos_token == "<s>" else ""
    record = TextRecord(("persona", "turn one", "turn two"), "reply")
    target = f"{first}reply</s>"
    assert spelled(loaded, record) == (f"{first}persona</s>turn one</s>turn two</s>", target)
    assert spelled(loaded, record, ends=False, before="say: ", after=" =>") == (
        f"{first}say: personaturn oneturn two =></s>",
        target,
    )
    assert spelled(loaded, TextRecord(("", ""), "")) == (f"{first}</s></s>", f"{first}</s>")


def test_records_that_are_too_long_lose_what_the_task_says(loaded):
    record = TextRecord(("persona text", "old turn " * 9, "new"), "a b c d e f g h")
    whole = objective_of(loaded).encode(record)
    assert (whole.cut_source, whole.cut_target) == (0, 0)
    for cut in ("source", "target"):
        short = objective_of(loaded, max_length=24, cut=cut, keep=1).encode(record)
        assert short.length == 24
        assert (short.cut_source > 0) == (cut == "source" or len(short.target) == 1)
        assert (short.cut_target > 0) == (cut == "target")
        kept = loaded.tokenizer.decode(short.prompt)
        assert "persona text</s>" in kept
        assert kept.endswith("new</s>")


def test_the_loss_of_a_record_does_not_depend_on_padding(loaded):
    for loss in ("mean", "sum"):
        objective = objective_of(loaded, loss=loss)
        examples = objective.encode_all(RECORDS)
        with torch.no_grad():
            alone = [objective.losses(loaded.model, objective.collate([e])) for e in examples]
            together = objective.losses(loaded.model, objective.collate(examples))
            torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)
            for example, own in zip(examples, alone, strict=True):
                widths = objective.widths(example)
                batch = objective.collate([example, objective.blank()], widths)
                shapes = {name: tuple(x.shape) for name, x in batch.tensors.items()}
                assert shapes["input_ids"] == (2, widths[1])
                assert shapes["targets"] == (2, widths[2])
                found = objective.losses(loaded.model, batch)
                torch.testing.assert_close(found[:1], own, rtol=1e-4, atol=1e-5)
                assert bool(torch.isfinite(found[1]))


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_one_prompt_at_a_time(loaded, beams):
    objective = objective_of(loaded)
    prompts = [ids for ids, _ in objective.prompts(RECORDS, Decode())]
    settings = Decode(beams=beams, max_new_tokens=6, batch_size=3)
    together = decode(loaded.model, loaded.tokenizer, prompts, settings, 0)
    alone = [decode(loaded.model, loaded.tokenizer, [p], settings, 0)[0] for p in prompts]
    assert together == alone == decode(loaded.model, loaded.tokenizer, prompts, settings, 1)
    assert not any(one.finished for one in together)  # BART begins with its end token
