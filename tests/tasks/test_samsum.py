"""SAMSum: published forms, a prompt whose instruction and delimiter survive, losses, scores."""

import json

import pytest

from dpft.config.errors import DataError
from dpft.tasks.objectives.records import TextRecord
from dpft.tasks.samsum import DELIMITER, INSTRUCTION, SAMSum, read_rows
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write, write_parquet
from tests.tasks.objectives.letters import loaded_letters, prompt_of, spelled

ENTRIES = [
    {"id": "1", "dialogue": "A: hi\r\nB: yo, tea?\r\nA: ok", "summary": " They have tea. "},
    {"id": "2", "dialogue": "", "summary": "Nothing is there."},
]
ROWS = [("A: hi\nB: yo, tea?\nA: ok", "They have tea."), ("", "Nothing is there.")]


@pytest.fixture(scope="module")
def sample():
    return SAMSum(source="sample")


@pytest.mark.parametrize("indent", [None, 1])
def test_every_form_gives_the_same_rows(tmp_path, indent):
    assert read_rows(write(tmp_path / "a.json", json.dumps(ENTRIES, indent=indent))) == ROWS
    lines = "".join(json.dumps(entry) + "\n" for entry in ENTRIES)
    assert read_rows(write(tmp_path / "a.jsonl", lines)) == ROWS
    assert hub_rows(SAMSum.dataset.hub, ENTRIES, "train") == ROWS
    write_parquet(tmp_path / "validation-00000-of-00001.parquet", ENTRIES)
    assert SAMSum(data_dir=str(tmp_path)).rows("dev") == ROWS


def test_a_copy_without_the_empty_dialogue_reads_the_same():
    entries = [ENTRIES[0], {**ENTRIES[1], "dialogue": None}]
    assert hub_rows(SAMSum.dataset.hub, entries, "train") == ROWS
    with pytest.raises(DataError, match="the hub's copy, row 1"):
        hub_rows(SAMSum.dataset.hub, [{"id": "1", "dialogue": "a"}], "train")


def letters(positions=10_000, **settings):
    """The task's objective over a tokenizer of letters, whose end token is ``^``."""
    return SAMSum(**settings).objective(loaded_letters("^", positions))


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
