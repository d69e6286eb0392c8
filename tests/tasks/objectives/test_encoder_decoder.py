"""Source into the encoder, target into the decoder, and a loss that is the record's own."""

import dataclasses

import pytest
import torch

from dpft.config.schema import Decode, Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.tasks.e2e import E2E
from dpft.tasks.objectives.base import Instance
from dpft.tasks.objectives.decode import decode
from dpft.tasks.objectives.encoder_decoder import EncoderDecoder
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.own_texts import TextToText
from dpft.tasks.personachat import PersonaChat
from dpft.tasks.samsum import SAMSum

FAMILIES = ("t5", "bart")
RECORDS = [
    TextRecord(("name : a b c", "one two three four"), "ok then"),
    TextRecord(("hello",), "good"),
    TextRecord(("one two",), "name : a b c d e f g h"),
]


@pytest.fixture(scope="module", params=FAMILIES)
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


@pytest.mark.parametrize("task", [E2E, SAMSum, PersonaChat])
def test_tasks_with_a_source_take_it(loaded, task):
    made = task(source="sample", limit_train=3)
    objective = made.objective(loaded)
    assert isinstance(objective, EncoderDecoder)
    for record, example in zip(
        made.records("train"), objective.encode_all(made.records("train")), strict=True
    ):
        text = loaded.tokenizer.decode(example.target, skip_special_tokens=True)
        assert text.strip() == record.target.strip()


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


def test_an_encoder_needs_no_room_for_what_is_written(loaded):
    task = TextToText(source="sample", max_length=40)
    record = TextRecord(("old turn " * 6,), "new")
    objective = task.objective(loaded)
    example = objective.encode(record)
    assert example.cut_source == 0
    for room in (1, 40, 1000):
        assert objective.prompts([record], Decode(max_new_tokens=room)) == [(example.prompt, 0)]


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


def test_widths_of_several_records_have_room_for_each(loaded):
    """Of a user's, the longest source may be one record's and the longest target another's."""
    objective = objective_of(loaded)
    examples = objective.encode_all(RECORDS)
    widths = [max(several) for several in zip(*map(objective.widths, examples), strict=True)]
    batch = objective.collate(examples, widths)
    for row, example in enumerate(examples):
        assert int(batch.tensors["attention_mask"][row].sum()) == len(example.prompt)
        assert int((batch.tensors["targets"][row] != -100).sum()) == len(example.target)


@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_one_prompt_at_a_time(loaded, beams):
    objective = objective_of(loaded)
    prompts = [ids for ids, _ in objective.prompts(RECORDS, Decode())]
    settings = Decode(beams=beams, max_new_tokens=6, batch_size=3)
    together = decode(loaded.model, loaded.tokenizer, prompts, settings, 0)
    alone = [decode(loaded.model, loaded.tokenizer, [p], settings, 0)[0] for p in prompts]
    assert together == alone == decode(loaded.model, loaded.tokenizer, prompts, settings, 1)
    assert not any(one.finished for one in together)  # BART begins with its end token


def test_decoding_finds_what_was_learnt(loaded):
    """A few steps on two records; the text and its end come back, and their likelihood."""
    objective = dataclasses.replace(objective_of(loaded), perplexity=True)
    examples = objective.encode_all(RECORDS[:2])
    state = {name: x.clone() for name, x in loaded.model.state_dict().items()}
    optimizer = torch.optim.Adam(loaded.model.parameters(), lr=3e-3)
    for _ in range(60):
        objective.losses(loaded.model, objective.collate(examples)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    instances = [Instance(record, (record.target,)) for record in RECORDS[:2]]
    found = objective.predict(
        loaded.model, instances, Decode(beams=2, max_new_tokens=12), 0, lambda count: None
    )
    losses = objective.losses(loaded.model, objective.collate(examples)).tolist()
    loaded.model.load_state_dict(state)
    for one, record, example, loss in zip(found, RECORDS, examples, losses, strict=False):
        assert one.prediction == record.target
        assert one.finished
        assert one.tokens == len(example.target)
        assert one.nll / one.tokens == pytest.approx(loss, rel=1e-3)


def test_the_decoder_s_positions_are_its_own(monkeypatch):
    """A source as long as Bart reads leaves the answer all of its room, and no more than that."""
    found = load_model(Model("x", "random:bart"), Needs("causal", source=True), seed=0)
    monkeypatch.setattr(found.model.config, "max_position_embeddings", 16)
    asked = []

    def generate(self, **settings):
        asked.append(settings["max_new_tokens"])
        return torch.full((1, 3), found.tokenizer.eos_token_id)

    monkeypatch.setattr(type(found.model), "generate", generate)
    decode(found.model, found.tokenizer, [(5,) * 16], Decode(beams=1, max_new_tokens=30), 0)
    assert asked == [16]
