"""Persona-Chat: both published forms, prompts that keep the persona, losses, scores."""

import json
from pathlib import Path

import pytest

from dpft.config.flags import sentences
from dpft.tasks.personachat import PersonaChat, Reply, read_text
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write, write_parquet
from tests.tasks.objectives.letters import loaded_letters, spelled

CANDIDATES = (
    "1 your persona: i have a dog.\n"
    "2 your persona: i am tall.\n"
    "3 hi !\thello .\t\tno .|maybe .|hello .\n"
    "4 any pets ?\tone dog .\t\tyes .|one dog .\n"
    "1 your persona: i sing.\n"
    "2 __SILENCE__\twho is there ?\t\tme .|who is there ?\n"
    "3 me .\twho is me ?\t\tnobody .|who is me ?\n"
)
PLAIN = "".join(line.split("\t\t")[0].rstrip("\n") + "\n" for line in CANDIDATES.splitlines())
REPLIES = [
    Reply(("i have a dog.", "i am tall."), ("hi !",), "hello ."),
    Reply(("i have a dog.", "i am tall."), ("hi !", "hello .", "any pets ?"), "one dog ."),
    Reply(("i sing.",), (), "who is there ?"),
    Reply(("i sing.",), ("who is there ?", "me ."), "who is me ?"),
]
DIALOGUES = [
    {
        "personality": ["i have a dog.", "i am tall."],
        "utterances": [
            {"candidates": ["no .", "hello ."], "history": ["hi !"]},
            {"candidates": ["one dog ."], "history": ["hi !", "hello .", "any pets ?"]},
        ],
    },
    {
        "personality": ["i sing."],
        "utterances": [
            {"candidates": ["me .", "who is there ?"], "history": ["__ SILENCE __"]},
            {"candidates": ["who is me ?"], "history": ["__ SILENCE __", "who is there ?", "me ."]},
        ],
    },
]


@pytest.fixture(scope="module")
def sample():
    return PersonaChat(source="sample")


@pytest.mark.parametrize("text", [CANDIDATES, PLAIN, CANDIDATES.replace("\n", "\r\n")])
def test_parlais_text_is_read_with_and_without_candidates(tmp_path, text):
    assert read_text(write(tmp_path / "a.txt", text)) == REPLIES


def test_the_hubs_rows_and_parquet_files_give_the_same_replies(tmp_path):
    assert hub_rows(PersonaChat.dataset.hub, DIALOGUES, "train") == REPLIES
    write_parquet(tmp_path / "train-00000-of-00001.parquet", DIALOGUES)
    assert PersonaChat(data_dir=str(tmp_path)).rows("train") == REPLIES
    lines = "".join(json.dumps(one) + "\n" for one in DIALOGUES)
    write(tmp_path / "train.jsonl", lines)
    assert PersonaChat(data_dir=str(tmp_path)).rows("train") == REPLIES


@pytest.fixture
def validation(tmp_path):
    one = "1 your persona: i am {0}.\n2 hi {0}\tyes {0}\n3 and {0}\tno {0}\n"
    text = "".join(one.format(number) for number in range(10))
    write(tmp_path / "valid_self_original_no_cands.txt", text)
    return str(tmp_path)


def test_personas_of_the_validation_file_train_or_evaluate(validation):
    task = PersonaChat(data_dir=validation, split_by_persona=0.6)
    train, dev = task.records("train"), task.records("dev")
    assert len(train) + len(dev) == 20
    personas = [{record.segments[0] for record in records} for records in (train, dev)]
    assert personas[0]
    assert personas[1]
    assert not personas[0] & personas[1]
    assert sentences(task.flags()) == ["validation file split by persona, about 60/40"]
    assert "split" not in "".join(sentences(PersonaChat(data_dir=validation).flags()))


def test_one_dialogue_more_moves_no_other(validation):
    task = PersonaChat(data_dir=validation, split_by_persona=0.6)
    before = task.rows("train")
    (file,) = Path(validation).glob("valid*.txt")
    first = "1 your persona: i am new.\n2 hello\tyes, new\t\tno|yes, new\n"
    file.write_text(first + file.read_text())
    after = task.rows("train")
    texts = [(row.persona, row.history, row.text) for row in before]
    old = [row for row in after if "i am new." not in row.persona]
    kept = [(row.persona, row.history, row.text) for row in old]
    assert kept == texts


def letters(**settings):
    """The task's objective over a tokenizer of letters, whose end token is ``|``."""
    return PersonaChat(**settings).objective(loaded_letters("|"))


RECORD = PersonaChat().record(Reply(("i am x.",), ("one one", "two two", "three"), "ok"))


@pytest.mark.parametrize(
    ("max_length", "prompt"),
    [
        (34, "i am x.|one one|two two|three|"),
        (28, "i am x.|e|two two|three|"),
        (20, "i am x.|o|three|"),
        (16, "i am x.|ree|"),
    ],
)
def test_the_oldest_turns_are_cut_and_the_persona_stays(max_length, prompt):
    example = letters(max_length=max_length).encode(RECORD)
    assert example.length <= max_length
    assert spelled(example.prompt) == prompt
    assert spelled(example.target) == " ok|"
