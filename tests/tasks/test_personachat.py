"""Persona-Chat: both published forms, prompts that keep the persona, losses, scores."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest

from dpft.config.errors import ConfigError, DataError
from dpft.config.schema import Decode
from dpft.tasks import load_task
from dpft.tasks.objectives.base import Prediction
from dpft.tasks.objectives.decode import Written
from dpft.tasks.personachat import LONGEST_REPLY, PersonaChat, Reply, read_json, read_text
from dpft.tasks.samples.personachat import SILENCE, TOPICS, write_files
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write, write_parquet
from tests.tasks.objectives.letters import loaded_letters, prompt_of, spelled

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
    Reply(0, ("i have a dog.", "i am tall."), ("hi !",), "hello ."),
    Reply(0, ("i have a dog.", "i am tall."), ("hi !", "hello .", "any pets ?"), "one dog ."),
    Reply(1, ("i sing.",), (), "who is there ?"),
    Reply(1, ("i sing.",), ("who is there ?", "me ."), "who is me ?"),
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
            {
                "candidates": ["who is me ?"],
                "history": ["__ SILENCE __", "who is there ?", "me ."],
            },
        ],
    },
]


@pytest.fixture(scope="module")
def sample():
    return PersonaChat(source="sample")


# Reading.


@pytest.mark.parametrize("text", [CANDIDATES, PLAIN, CANDIDATES.replace("\n", "\r\n")])
def test_parlais_text_is_read_with_and_without_candidates(tmp_path, text):
    assert read_text(write(tmp_path / "a.txt", text)) == REPLIES


def test_hugging_faces_file_gives_the_same_replies_and_holds_both_splits(tmp_path):
    content = {"train": DIALOGUES, "valid": DIALOGUES[1:]}
    file = write(tmp_path / "personachat_self_original.json", content)
    assert read_json(file, "train") == REPLIES
    task = PersonaChat(data_dir=str(tmp_path))
    assert task.rows("train") == REPLIES
    assert [row.text for row in task.rows("dev")] == ["who is there ?", "who is me ?"]
    assert [record.source for record in task.records("train")] == [
        "i have a dog. i am tall.\nhi !",
        "i have a dog. i am tall.\nhi !\nhello .\nany pets ?",
        "i sing.",
        "i sing.\nwho is there ?\nme .",
    ]


def test_the_hubs_rows_and_parquet_files_give_the_same_replies(tmp_path):
    assert hub_rows(PersonaChat.dataset.hub, DIALOGUES) == REPLIES
    write_parquet(tmp_path / "train-00000-of-00001.parquet", DIALOGUES)
    assert PersonaChat(data_dir=str(tmp_path)).rows("train") == REPLIES


def test_a_folder_with_both_files_of_a_split_is_not_read_twice(tmp_path):
    for split in ("train", "valid"):
        write(tmp_path / f"{split}_self_original_no_cands.txt", PLAIN)
    assert PersonaChat(data_dir=str(tmp_path)).rows("dev") == REPLIES
    write(tmp_path / "train_self_original.txt", CANDIDATES)
    assert PersonaChat(data_dir=str(tmp_path)).rows("train") == REPLIES


def test_a_file_of_both_halves_is_no_file_of_held_out_records(tmp_path, sample):
    """It was read as its training half, also where held-out records were asked for."""
    for train, valid in ((DIALOGUES, []), ([], DIALOGUES)):
        file = write(tmp_path / "one.json", json.dumps({"train": train, "valid": valid}))
        assert sample.read_file(file) == REPLIES
    file = write(tmp_path / "both.json", json.dumps({"train": DIALOGUES, "valid": DIALOGUES[:1]}))
    with pytest.raises(DataError, match="holds training and validation dialogues"):
        sample.read_file(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "line 1: got 'hello' after number 0"),
        (CANDIDATES.replace("4 any", "5 any"), "line 4: .*after number 3; expected 4, or 1"),
        (CANDIDATES.replace("2 your persona", "2 partner's persona"), "line 2: .*expected 'your"),
        (CANDIDATES.replace("i am tall.", ""), "line 2: .*expected 'your persona"),
        (CANDIDATES.replace("hi !\t", "hi !"), "line 3: got no reply or utterance"),
        (CANDIDATES.replace("\tone dog .\t", "\t\t"), "line 4: got no reply or utterance"),
        (PLAIN.replace("any pets ?\t", ""), "line 4: got '4 one dog .'"),
        ("1 hi\tyou\n", "line 1: got no persona"),
        (PLAIN + "1 your persona: i am late.\n", "last line: dialogue 3 ended without a reply"),
        ("1 your persona: a.\n" + PLAIN, "line 2: dialogue 1 ended without a reply"),
    ],
)
def test_a_malformed_text_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=rf"bad\.txt, {message}"):
        read_text(write(tmp_path / "bad.txt", text))


def _changed(change):
    content = json.loads(json.dumps({"train": DIALOGUES, "valid": DIALOGUES}))
    change(content["train"][1])
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"train":\n[}', "line 2: "),
        ('{"train": ' + "[" * 20_000, "it is nested too deep; expected"),
        ('{"train": ' + "9" * 5_000, "Exceeds the limit"),
        ({"valid": []}, "line 1: got no list 'train'"),
        ([], "line 1: got no list 'train'"),
        (_changed(lambda d: d.pop("personality")), "train, dialogue 2: got personality None"),
        (_changed(lambda d: d.update(personality="x")), "dialogue 2: got personality x"),
        (_changed(lambda d: d.pop("utterances")), "dialogue 2: got no utterances"),
        (_changed(lambda d: d.update(utterances=[3])), "dialogue 2: got history None"),
        (_changed(lambda d: d["utterances"][0].update(candidates=[])), "got candidates"),
        (_changed(lambda d: d["utterances"][1].update(history=["", "a"])), "got history"),
        (_changed(lambda d: d["utterances"][0].update(candidates=["\ud83d"])), "no valid Unicode"),
    ],
)
def test_a_malformed_json_file_is_refused_with_its_place(tmp_path, content, message):
    with pytest.raises(DataError, match=rf"bad\.json.*{message}"):
        read_json(write(tmp_path / "bad.json", content), "train")


def test_there_is_no_test_split():
    with pytest.raises(DataError, match=r"never published.*decode\.split=dev"):
        PersonaChat(source="sample").records("test")


def test_synthetic_replies_are_written_and_read_back(tmp_path):
    task = PersonaChat(data_dir=str(tmp_path))
    task.write_records(REPLIES, ["a", "b", "c", "d"], tmp_path / task.written_as)
    made = PersonaChat(synthetic=str(tmp_path / task.written_as), split_by_persona=0.5)
    expected = [
        dataclasses.replace(row, dialogue=number, text=text)
        for number, (row, text) in enumerate(zip(REPLIES, "abcd", strict=True))
    ]
    assert made.rows("train") == expected
    assert made.details("train") == ["4 dialogues"]


# The validation file alone.


@pytest.fixture
def validation(tmp_path):
    one = "1 your persona: i am {0}.\n2 hi {0}\tyes {0}\n3 and {0}\tno {0}\n"
    text = "".join(one.format(number) for number in range(10))
    write(tmp_path / "valid_self_original_no_cands.txt", text)
    return str(tmp_path)


def test_the_validation_file_alone_says_how_to_train_on_it(validation):
    with pytest.raises(DataError, match=r"no training file.*task\.split_by_persona=0\.8"):
        PersonaChat(data_dir=validation).records("train")
    assert len(PersonaChat(data_dir=validation).records("dev")) == 20


def test_personas_of_the_validation_file_train_or_evaluate(validation):
    task = PersonaChat(data_dir=validation, split_by_persona=0.6)
    train, dev = task.records("train"), task.records("dev")
    assert len(train) + len(dev) == 20
    personas = [{record.segments[0] for record in records} for records in (train, dev)]
    assert personas[0]
    assert personas[1]
    assert not personas[0] & personas[1]
    assert task.labels() == ["validation file split by persona, about 60/40"]
    assert "split" not in "".join(PersonaChat(data_dir=validation).labels())


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


def test_a_persona_whose_facts_come_in_another_order_is_on_the_same_side(tmp_path):
    facts = ["i like tea .", "i sing .", "i have a dog ."]
    dialogues = []
    for number, order in itertools.product(range(4), itertools.permutations(facts)):
        persona = [f"i am number {number} .", *order]
        dialogues += [f"{line} your persona: {fact}\n" for line, fact in enumerate(persona, 1)]
        dialogues.append(f"5 hi\tit is {number}\n")
    write(tmp_path / "valid_self_original.txt", "".join(dialogues))
    task = PersonaChat(data_dir=str(tmp_path), split_by_persona=0.5)
    train, dev = ({row.text for row in task.rows(split)} for split in ("train", "dev"))
    assert not train & dev
    assert len(train | dev) == 4


def test_a_share_that_leaves_nothing_is_refused(validation):
    with pytest.raises(DataError, match="leaves no dialogue for dev"):
        PersonaChat(data_dir=validation, split_by_persona=0.9999).records("dev")
    for share in (0.0, 1.0, 80):
        with pytest.raises(ConfigError, match=r"task\.split_by_persona is"):
            load_task({"name": "personachat", "split_by_persona": share})


# Prompts.


def letters(**settings):
    """The task's objective over a tokenizer of letters, whose end token is ``|``."""
    return PersonaChat(**settings).objective(loaded_letters("|"))


RECORD = PersonaChat().record(Reply(0, ("i am x.",), ("one one", "two two", "three"), "ok"))


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


def test_an_endless_persona_leaves_half_to_the_reply():
    record = PersonaChat().record(Reply(0, ("p" * 50,), ("hello",), "fine"))
    example = letters(max_length=20).encode(record)
    assert (spelled(example.prompt), spelled(example.target)) == ("p" * 10 + "llo|", " fine|")
    prompt = prompt_of(letters(max_length=20), record, room=10)
    assert spelled(prompt) == "p" * 10


def test_a_prompt_to_answer_has_half_of_few_tokens():
    """A reply has room for more than that, and a question without the last turn asks nothing."""
    record = PersonaChat().record(Reply(0, ("p",), ("h" * 50,), "fine"))
    assert LONGEST_REPLY > 40 / 2
    assert spelled(prompt_of(letters(max_length=40), record)) == "p|" + "h" * 17 + "|"


def test_a_prompt_to_answer_leaves_room_for_a_reply_not_for_all_that_decoding_may_write(
    monkeypatch,
):
    objective = dataclasses.replace(letters(max_length=100), perplexity=False)
    long = PersonaChat().record(Reply(0, ("i am x.",), ("h" * 200,), "ok"))
    prompts = []

    def fake(model, tokenizer, given, settings, seed, advance, cohort):
        prompts.extend(given)
        return [Written("", finished=True)] * len(given)

    monkeypatch.setattr("dpft.tasks.objectives.causal.decode", fake)
    instances = [PersonaChat().instance(long)]
    objective.predict(None, instances, Decode(max_new_tokens=90), 0, lambda count: None)
    assert len(prompts[0]) == 100 - LONGEST_REPLY
    assert spelled(prompts[0]).startswith("i am x.|h")


# Losses and scores.


def test_predictions_are_scored_by_f1_and_token_perplexity(tiny, sample):
    task = dataclasses.replace(sample, limit_eval=3)
    settings = Decode(beams=1, max_new_tokens=4, batch_size=2)
    instances = task.instances("dev")
    predictions = task.objective(tiny).predict(tiny.model, instances, settings, 0, lambda n: None)
    scores = task.score(predictions)
    assert list(scores) == ["F1", "token_perplexity"]
    nll, tokens = sum(p.nll for p in predictions), sum(p.tokens for p in predictions)
    assert scores["token_perplexity"] == pytest.approx(math.exp(nll / tokens))
    ends = [len(tiny.tokenizer.encode(" " + i.references[0])) + 1 for i in instances]
    assert [p.tokens for p in predictions] == ends


def test_predictions_of_another_program_have_f1_alone(sample):
    predictions = [Prediction("", "The cat sat on a mat!", ("a cat is on the mat",))]
    assert sample.score(predictions) == {"F1": pytest.approx(0.75), "token_perplexity": None}
    assert "parlai" in sample.signature()
    assert "end token" in sample.signature()
    assert f"cut to {sample.max_length} tokens" in sample.signature()


# The generated sample.


def test_the_sample_shares_no_persona(sample):
    rows = {split: sample.rows(split) for split in ("train", "dev")}
    count = {split: len({row.dialogue for row in rows[split]}) for split in rows}
    assert count == {"train": 800, "dev": 100}
    personas = [{frozenset(row.persona) for row in rows[split]} for split in rows]
    assert not personas[0] & personas[1]
    assert {len(persona) for persona in personas[0]} == {3, 4, 5}
    assert any(not row.history for row in rows["train"])


def test_the_true_reply_is_the_last_candidate_and_once(tmp_path):
    write_files(tmp_path, seed=0)
    lines = (tmp_path / "valid_self_original.txt").read_text().splitlines()
    turns = [line.split("\t") for line in lines if "\t" in line]
    assert any(SILENCE in fields[0] for fields in turns)
    for fields in turns:
        candidates = fields[3].split("|")
        assert (len(fields), fields[2], candidates[-1]) == (4, "", fields[1])
        assert len(candidates) == len(set(candidates)) == 5


def test_replies_of_the_sample_follow_from_the_persona(sample):
    """All but greetings and goodbyes tell a value of the persona's."""
    values = [value for topic in TOPICS for value in topic.values]
    told = 0
    for row in sample.rows("dev"):
        own = [value for value in values if any(f" {value}" in fact for fact in row.persona)]
        spoken = [
            value
            for topic in TOPICS
            for value in topic.values
            if any(answer.format(value) in row.text for answer in topic.answers)
            or topic.fact.format(value).replace(".", " .") in row.text
        ]
        told += bool(spoken)
        assert not spoken or set(spoken) & set(own), row
    assert told > 0.7 * len(sample.rows("dev"))


# Real data.


@pytest.mark.realdata
def test_the_real_validation_file_is_read_by_dialogue(data_root):
    rows = PersonaChat(data_dir=str(data_root / "personachat")).rows("dev")
    assert len({row.dialogue for row in rows}) == 1000
    assert {len(row.persona) for row in rows} == {4, 5}


@pytest.mark.realdata
def test_no_real_dialogue_is_on_both_sides_of_the_split(data_root):
    task = PersonaChat(data_dir=str(data_root / "personachat"), split_by_persona=0.8)
    train, dev = ({row.dialogue for row in task.rows(split)} for split in ("train", "dev"))
    assert not train & dev
    assert len(train | dev) == 1000
    assert 750 < len(train) < 850
    assert len(task.rows("train")) + len(task.rows("dev")) == 7801


@pytest.mark.realdata
def test_no_real_reply_is_longer_than_the_room_left_for_it(data_root):
    from tokenizers import ByteLevelBPETokenizer

    folder = data_root / "tokenizers" / "gpt2"
    tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    rows = PersonaChat(data_dir=str(data_root / "personachat")).rows("dev")
    lengths = [len(tokenizer.encode(" " + row.text).ids) + 1 for row in rows]
    assert max(lengths) == 28 <= LONGEST_REPLY
