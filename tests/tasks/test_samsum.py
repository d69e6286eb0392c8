"""SAMSum: published forms, a prompt whose instruction and delimiter survive, losses, scores."""

import dataclasses
import json

import pytest
import torch

from dpft.config.errors import DataError
from dpft.config.schema import Decode
from dpft.tasks.objectives.base import Prediction
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.samsum import DELIMITER, INSTRUCTION, SAMSum, read_json, read_lines
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write, write_parquet
from tests.tasks.objectives.letters import loaded_letters, prompt_of, spelled

ENTRIES = [
    {"id": "1", "dialogue": "A: hi\r\nB: yo, tea?\r\nA: ok", "summary": " They have tea. "},
    {"id": "2", "dialogue": "", "summary": "Nothing is there."},
]
ROWS = [("A: hi\nB: yo, tea?\nA: ok", "They have tea."), ("", "Nothing is there.")]
GOOD = '{"id": "1", "dialogue": "A: a", "summary": "s"}'


@pytest.fixture(scope="module")
def sample():
    return SAMSum(source="sample")


# Reading.


@pytest.mark.parametrize("indent", [None, 1])
def test_every_form_gives_the_same_rows(tmp_path, indent):
    assert read_json(write(tmp_path / "a.json", json.dumps(ENTRIES, indent=indent))) == ROWS
    lines = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
    assert read_lines(write(tmp_path / "a.jsonl", lines)) == ROWS
    assert hub_rows(SAMSum.dataset.hub, ENTRIES) == ROWS
    write_parquet(tmp_path / "validation-00000-of-00001.parquet", ENTRIES)
    assert SAMSum(data_dir=str(tmp_path)).rows("dev") == ROWS


def test_a_copy_without_the_empty_dialogue_reads_the_same():
    assert hub_rows(SAMSum.dataset.hub, [ENTRIES[0], {**ENTRIES[1], "dialogue": None}]) == ROWS
    with pytest.raises(DataError, match="the hub's copy, row 1"):
        hub_rows(SAMSum.dataset.hub, [{"id": "1", "dialogue": "a"}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: got ''; expected a JSON list"),
        ('{"id": "1"}', "line 1: got .*; expected a JSON list"),
        (
            f'[\n{GOOD},\n{{"id": "2", "dialogue": "x"}}\n]',
            "line 3, entry 2: got .*'dialogue': 'x'",
        ),
        (f"[\n{GOOD},\n\n{GOOD},\n3\n]", "line 5, entry 3: got 3"),
        (f"[\n{GOOD}\n{GOOD}]", "line 3: Expecting"),
        (f"[\n{GOOD},\n", "line 3: Expecting"),
        (f"[\n{GOOD},\n" + '{"id" 3}]', "line 3: Expecting"),
        (f"[{GOOD},\n" + GOOD.replace('"s"', '" "') + "]", "line 2, entry 2: .*summary not empty"),
        ("[" + GOOD.replace('"A: a"', "7") + "]", "line 1, entry 1: got dialogue '7'"),
        ("[" + GOOD.replace('"s"', '"\\ud83d"') + "]", "line 1, entry 1: got .* no valid Unicode"),
        (f"[\n{GOOD},\n{'[' * 20_000}", "line 3: it is nested too deep; expected a JSON list"),
        (f"[\n{GOOD},\n{'9' * 5_000}]", r"line 3: Exceeds the limit \(4300 digits\)"),
    ],
)
def test_a_malformed_list_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"(?s)bad\.json, {message}"):
        read_json(write(tmp_path / "bad.json", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{GOOD}\n{{", "line 2: Expecting"),
        (f"{GOOD}\n\n[1]", "line 3: got"),
        (GOOD.replace("summary", "sum"), "line 1: got"),
    ],
)
def test_malformed_lines_are_refused_with_their_number(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"bad\.jsonl, {message}"):
        read_lines(write(tmp_path / "bad.jsonl", text))


def test_synthetic_summaries_are_written_and_read_back(tmp_path):
    task = SAMSum()
    task.write_records(ROWS, ["One.", "Two."], tmp_path / task.written_as)
    made = SAMSum(synthetic=str(tmp_path / task.written_as))
    assert made.rows("train") == [(ROWS[0][0], "One."), (ROWS[1][0], "Two.")]


def test_dialogues_are_asked_without_summaries(tmp_path):
    """All that stands beside them is given back."""
    entries = [{"id": "1", "dialogue": "A: hi\r\nB: yo ", "room": 3}, ENTRIES[1]]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    for file in (write(tmp_path / "a.json", entries), write(tmp_path / "a.jsonl", lines)):
        asked = SAMSum().questions(file)
        assert [one.cells for one in asked] == entries
        assert [one.instance.record.source for one in asked] == ["A: hi\nB: yo", ""]
        assert {one.instance.references for one in asked} == {()}
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: got "):
        SAMSum().questions(write(tmp_path / "a.jsonl", '{"text": "A: hi"}'))


# Prompts.


def letters(positions=10_000, **settings):
    """The task's objective over a tokenizer of letters, whose end token is ``^``."""
    return SAMSum(**settings).objective(loaded_letters("^", positions))


def test_the_prompt_has_instruction_dialogue_and_delimiter():
    example = letters().encode(SAMSum().record(ROWS[0]))
    assert spelled(example.prompt) == (
        "Summarize the following dialogue\nA: hi\nB: yo, tea?\nA: ok\nTL;DR"
    )
    assert spelled(example.target) == " They have tea.^"
    assert spelled(prompt_of(letters(), SAMSum().record(ROWS[0]))) == spelled(example.prompt)


def test_a_dialogue_may_be_empty():
    example = letters().encode(SAMSum().record(ROWS[1]))
    assert spelled(example.prompt) == INSTRUCTION + DELIMITER


def test_a_long_dialogue_loses_its_start_and_nothing_else_is_cut():
    record = TextRecord(("A: hello\n" * 50 + "B: bye",), "They part.")
    example = letters(max_length=80).encode(record)
    assert example.length == 80
    room = 80 - len(INSTRUCTION) - len(DELIMITER) - len(" They part.^")
    assert spelled(example.prompt) == INSTRUCTION + record.source[-room:] + DELIMITER
    assert spelled(example.target) == " They part.^"
    prompt = spelled(prompt_of(letters(positions=80), record, room=30))
    assert len(prompt) == 50
    assert prompt.startswith(INSTRUCTION)
    assert prompt.endswith(f"B: bye{DELIMITER}")


def test_a_model_with_few_positions_is_not_given_more(tiny, sample):
    record = TextRecord(("Anna: we like the river. " * 200,), "Anna likes the river.")
    assert letters(positions=90).encode(record).length == 90
    objective = sample.objective(tiny)
    example = objective.encode(record)
    assert example.length == tiny.model.config.max_position_embeddings == 256
    with torch.no_grad():
        assert objective.losses(tiny.model.eval(), objective.collate([example])).isfinite().all()


# Losses and scores.


def test_predictions_are_scored_by_rouge(tiny, sample):
    text = "Amanda baked cookies and will bring Jerry some tomorrow."
    scores = sample.score([Prediction("", text, ("Amanda is baking cookies for Jerry.",))])
    assert scores == pytest.approx(
        {"ROUGE_1": 53.3333, "ROUGE_2": 15.3846, "ROUGE_L": 53.3333}, abs=1e-4
    )
    assert "rouge_score:" in sample.signature()
    task = dataclasses.replace(sample, limit_eval=2)
    settings = Decode(beams=1, max_new_tokens=4)
    predictions = task.objective(tiny).predict(
        tiny.model, task.instances("test"), settings, 0, lambda count: None
    )
    assert set(task.score(predictions)) == set(scores)


# The generated sample.


def test_no_dialogue_of_the_sample_comes_twice(sample):
    rows = [sample.rows(split) for split in ("train", "dev", "test")]
    assert list(map(len, rows)) == [800, 100, 100]
    assert len({dialogue for split in rows for dialogue, _ in split}) == 1000


def test_summaries_of_the_sample_follow_from_the_dialogue(sample):
    """Who and when are words of the dialogue: they can be copied, and differ between records."""
    rows = sample.rows("train")
    for dialogue, summary in rows:
        speakers = {line.split(":")[0] for line in dialogue.split("\n")}
        told = set(summary.replace(".", "").replace(",", "").split())
        assert len(speakers) == 2
        assert told & speakers
        times = {"tonight", "tomorrow", "Monday", "Tuesday", "Friday", "Saturday", "week", "noon"}
        for word in told & times:
            assert word in dialogue.lower() or word in dialogue
    assert len({summary for _, summary in rows}) > 0.95 * len(rows)


def test_the_sample_fits_the_bundled_model(tiny, sample):
    objective = sample.objective(tiny)
    instruction = objective.encode(TextRecord(("",), "x")).prompt
    lengths = []
    for record in sample.records("train"):
        example = objective.encode(record)
        lengths.append(example.length)
        whole = len(tiny.tokenizer.encode(record.source))
        assert len(example.prompt) == len(instruction) + whole  # nothing was cut
    assert max(lengths) <= 256 - 30


# Real data.


@pytest.mark.realdata
def test_one_real_dialogue_is_empty(data_root):
    task = SAMSum(data_dir=str(data_root / "samsum"))
    empty = [row for row in task.rows("train") if not row[0]]
    assert len(empty) == 1
    assert not any("\r" in dialogue for dialogue, _ in task.rows("test"))
