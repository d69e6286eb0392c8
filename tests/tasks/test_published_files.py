"""Published data sets: all their forms, what of them is a record, what is refused, what is cut."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpft.config.errors import ConfigError, DataError
from dpft.config.flags import sentences
from dpft.tasks import TASKS, dart, e2e, load_task, sources
from dpft.tasks.classification import MNLI, QQP, Columns, read_tsv
from dpft.tasks.dart import DART, Lexicalisation, read_json
from dpft.tasks.dialogues import (
    DELIMITER,
    INSTRUCTION,
    PersonaChat,
    Reply,
    SAMSum,
    read_lines,
    read_rows,
    read_text,
)
from dpft.tasks.e2e import E2E, read_csv
from dpft.tasks.objectives.objective import Prediction
from dpft.tasks.objectives.record_types import LabelledText, TextRecord
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write, write_parquet
from tests.tasks.objectives.support import loaded_letters, prompt_of, spelled

TEXT_TASKS = [name for name, cls in TASKS.items() if ".images:" not in cls]


def read_sentences(path):
    return read_tsv(path, Columns(("sentence",), "label", ("0", "1")))


def json_lines(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


TRIPLES = (("Aromi", "AREA_CODE", "9"), ("Aromi", "food", "Thai"))


def entry(triples, *texts):
    annotations = [{"source": "a", "text": text} for text in texts]
    return {"tripleset": [[*triple] for triple in triples], "annotations": annotations}


ENTRY = entry(TRIPLES, "One.", " Two. ")
LEXICALISED = [Lexicalisation(0, TRIPLES, "One."), Lexicalisation(0, TRIPLES, "Two.")]
SAMSUM = [
    {"id": "1", "dialogue": "A: hi\r\nB: yo, tea?\r\nA: ok", "summary": " They have tea. "},
    {"id": "2", "dialogue": "", "summary": "Nothing is there."},
]
SUMMARISED = [("A: hi\nB: yo, tea?\nA: ok", "They have tea."), ("", "Nothing is there.")]
CANDIDATES = (
    "1 your persona: i have a dog.\n"
    "2 your persona: i am tall.\n"
    "3 hi !\thello .\t\tno .|maybe .|hello .\n"
    "4 any pets ?\tone dog .\t\tyes .|one dog .\n"
    "1 your persona: i sing.\n"
    "2 __SILENCE__\twho is there ?\t\tme .|who is there ?\n"
)
PLAIN = "".join(line.split("\t\t")[0].rstrip("\n") + "\n" for line in CANDIDATES.splitlines())
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
        ],
    },
]
REPLIES = [
    Reply(("i have a dog.", "i am tall."), ("hi !",), "hello ."),
    Reply(("i have a dog.", "i am tall."), ("hi !", "hello .", "any pets ?"), "one dog ."),
    Reply(("i sing.",), (), "who is there ?"),
]


@pytest.mark.parametrize(
    ("read", "content", "rows"),
    [
        (
            read_csv,
            'mr,ref\n"name[A ""B""], near[C, D]","One.\nTwo, three."\nname[E],Four\n',
            [('name[A "B"], near[C, D]', "One.\nTwo, three."), ("name[E]", "Four")],
        ),
        # Quotes mean nothing, and texts are stripped.
        (
            read_sentences,
            'sentence\tlabel\n"good" , and "fine \t1\r\n bad\t0\n',
            [(('"good" , and "fine',), 1, ""), (("bad",), 0, "")],
        ),
        (read_json, [ENTRY], LEXICALISED),
        (read_rows, SAMSUM, SUMMARISED),
        (read_rows, json.dumps(SAMSUM), SUMMARISED),
        (read_rows, json_lines(SAMSUM), SUMMARISED),
        (read_text, CANDIDATES, REPLIES),
        (read_text, PLAIN, REPLIES),
        (read_text, CANDIDATES.replace("\n", "\r\n"), REPLIES),
        (read_lines, json_lines(DIALOGUES), REPLIES),
    ],
)
def test_published_forms_are_read(tmp_path, read, content, rows):
    assert read(write(tmp_path / "a.json", content)) == rows


E2E_HEAD = "mr,ref\nname[A],B.\n"
CHAT = {"personality": ["i sing."], "utterances": [{"candidates": ["a"], "history": ["b"]}]}


@pytest.mark.parametrize(
    ("read", "content", "place"),
    [
        (read_csv, "text,label\na,b\n", "columns text, label"),
        (read_csv, f"{E2E_HEAD}name[B]\n", "line 3"),
        (read_csv, f"{E2E_HEAD}name[B],\n", "line 3"),
        (read_csv, f'{E2E_HEAD}"name[A], food[B] area[C]",text\n', "line 3.*area"),
        (read_sentences, "index\tsentence\n0\ta\n", "line 1"),
        (read_sentences, "sentence\tlabel\na\t1\nb\n", "line 3"),
        (read_sentences, "sentence\tlabel\na\t2\n", "line 2"),
        (read_sentences, "sentence\tlabel\n \t1\n", "line 2"),
        (read_sentences, b"sentence\tlabel\n\xff\t1\n", "not UTF-8"),
        (read_json, [{"tripleset": [["a", "b", "c"]]}], "entry 1"),
        (read_json, [ENTRY, ENTRY | {"tripleset": [["a", "b"]]}], "entry 2"),
        (read_json, [ENTRY | {"tripleset": [["a", " ", "c"]]}], "entry 1"),
        (read_json, [ENTRY | {"annotations": [{"source": "a"}]}], "entry 1"),
        (read_json, [ENTRY | {"tripleset": [["a", "\ud83d", "c"]]}], "entry 1.*Unicode"),
        (read_rows, '{"id": "1"}', "line 1"),
        (read_rows, [*SAMSUM, {"id": "3", "dialogue": "x"}], "entry 3"),
        (read_rows, [SAMSUM[0] | {"summary": " "}], "entry 1"),
        (read_rows, f"[\n{json.dumps(SAMSUM[0])}\n3]", "line 3"),
        (read_rows, f"[{'[' * 20_000}", "nested too deep"),
        (read_text, "hello\n", "line 1"),
        (read_text, "1 your persona: a.\n3 hi\tyou\n", "line 2"),
        (read_text, "1 your persona: a.\n2 partner's persona: b.\n", "line 2"),
        (read_text, "1 your persona: a.\n2 hi\n", "line 2"),
        (read_lines, json.dumps(CHAT | {"personality": "x"}), "dialogue 1"),
        (read_lines, json.dumps(CHAT | {"utterances": [3]}), "dialogue 1"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(tmp_path, read, content, place):
    with pytest.raises(DataError, match=rf"(?s)bad\.json.*{place}"):
        read(write(tmp_path / "bad.json", content))


QUESTIONS = {"question1": "A? ", "question2": "B?", "label": 1, "idx": 0}
TRIPLESET = {"tripleset": [["B", "is", "x"]], "target": "1."}
BOTH = [Lexicalisation(0, (("B", "is", "x"),), text) for text in ("1.", "2.")]


@pytest.mark.parametrize(
    ("task", "rows", "column", "expected"),
    [
        (
            E2E,
            [{"meaning_representation": "n[A]", "human_reference": "A."}],
            "human_reference",
            [("n[A]", "A.")],
        ),
        (QQP, [QUESTIONS], "label", [(("A?", "B?"), 1, "")]),
        (DART, [TRIPLESET | {"references": []}], "target", BOTH[:1]),
        (DART, [TRIPLESET | {"references": ["1.", "2."]}], "target", BOTH),
        (SAMSum, SAMSUM, "summary", SUMMARISED),
        (SAMSum, [SAMSUM[0], SAMSUM[1] | {"dialogue": None}], "dialogue", SUMMARISED),
        (PersonaChat, DIALOGUES, "utterances", REPLIES),
    ],
)
def test_rows_of_the_hub_and_of_its_parquet_files(tmp_path, task, rows, column, expected):
    assert hub_rows(task.dataset.hub, rows, "train") == expected
    write_parquet(tmp_path / "train-00000-of-00001.parquet", rows)
    assert task(data_dir=str(tmp_path)).rows("train") == expected
    broken = {name: cell for name, cell in rows[0].items() if name != column}
    with pytest.raises(DataError, match=r"hub's copy"):
        hub_rows(task.dataset.hub, [{**broken, "references": []}], "train")


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_synthetic_records_are_written_in_a_form_that_is_read_back(tmp_path, name):
    more = {"classes": "from_data"} if name == "classification" else {}
    task = load_task({"name": name, "source": "sample", **more})
    if task.writes_nothing is not None:
        return
    rows, records = task.rows("train")[:3], task.records("train")[:3]
    targets = ["Ü", "b", "c"]
    pairs = zip(records, targets, strict=True)
    expected = [replace(record, target=target) for record, target in pairs]
    task.write_records(rows, targets, tmp_path / task.written_as)
    made = replace(task, synthetic=str(tmp_path / task.written_as))
    assert list(made.records("train")) == expected
    assert len(made.records("dev")) == len(task.records("dev"))


def test_data_is_looked_for_in_the_folder_then_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_DATA", str(tmp_path))
    write(tmp_path / "e2e" / "trainset.csv", E2E_HEAD)
    assert E2E().location == ("files", tmp_path / "e2e")
    with pytest.raises(DataError, match=r"looked in .*other.*task\.source=sample"):
        _ = E2E(data_dir=str(tmp_path / "other")).location
    monkeypatch.delenv("DPFT_DATA")
    with pytest.raises(DataError, match="DPFT_DATA is not set"):
        _ = E2E(source="files").location


def test_meaning_representations_and_triples_become_prompts():
    mr = "name[The Mill], eatType[coffee shop], priceRange[£20-25], near[Café, Rouge]"
    assert e2e.linearise(mr) == (
        "name : The Mill | eatType : coffee shop | priceRange : £20-25 | near : Café, Rouge"
    )
    assert dart.linearise(TRIPLES) == "Aromi : area_code : 9 | Aromi : food : Thai"


def test_instances_of_e2e_are_runs_of_consecutive_equal_rows(tmp_path):
    rows = "mr,ref\nname[A],one\nname[A],two\nname[B],three\nname[A],four\n"
    write(tmp_path / "testset_w_refs.csv", rows)
    instances = E2E(data_dir=str(tmp_path)).instances("test")
    assert [i.references for i in instances] == [("one", "two"), ("three",), ("four",)]


def dart_folder(path, **splits):
    for split, content in splits.items():
        write(path / f"dart-v1.1.1-full-{split}.json", content)
    return str(path)


def test_empty_references_and_bare_triple_sets_of_dart_are_left_out(tmp_path):
    triples = [[("A", "is", name)] for name in "abcd"]
    texts = [("", "One."), (), (" ",), ("Two.",)]
    content = [entry(of, *some) for of, some in zip(triples, texts, strict=True)]
    task = DART(data_dir=dart_folder(tmp_path, test=content))
    assert [i.references for i in task.instances("test")] == [("One.",), ("Two.",)]
    assert [r.target for r in task.records("test")] == ["One.", "Two."]


def test_darts_dev_split_may_be_trained_on_and_is_then_no_evaluation_split(tmp_path):
    folder = dart_folder(tmp_path, dev=[ENTRY], test=[ENTRY])
    task = DART(data_dir=folder, train_split="dev")
    assert [r.target for r in task.records("train")] == ["One.", "Two."]
    assert "trained on the dev split" in sentences(task.flags())
    assert len(task.instances("test")) == 1
    for read in (task.records, task.instances):
        with pytest.raises(DataError, match=r"train_split=dev.*Type decode\.split=test"):
            read("dev")
    assert sentences(DART(data_dir=folder).flags()) == []
    with pytest.raises(DataError, match="no train split"):
        DART(data_dir=folder).records("train")
    with pytest.raises(ConfigError, match="train_split is 'test'; expected one of train, dev"):
        DART(train_split="test")


QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
QQP_ROW = '1\t2\t3\tWhat is "love?\tWho am I?\t0\n'


def test_columns_are_found_by_name(tmp_path):
    header = "index\tpromptID\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    row = "0\t7\t(ROOT)\tHe ran.\tHe moved.\tneutral\tentailment\n"
    for name in ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"):
        write(tmp_path / name, header + row)
    task = MNLI(data_dir=str(tmp_path))
    assert task.records("train") == [LabelledText(("He ran.", "He moved."), 0)]
    assert [i.subset for i in task.instances("dev")] == ["matched", "mismatched"]


def test_few_broken_lines_of_qqp_are_left_out_and_empty_questions_kept(tmp_path):
    # One record over two lines, as a line break inside a question makes it.
    broken = '4\t5\t6\t"What is\nlove?\tWho?\t1\n'
    empty = "7\t8\t9\tWhat?\t\t0\n"
    write(tmp_path / "train.tsv", QQP_HEADER + QQP_ROW * 3000 + broken + empty)
    rows = QQP(data_dir=str(tmp_path)).rows("train")
    assert len(rows) == 3001
    assert rows[0] == (('What is "love?', "Who am I?"), 0, "")
    assert rows[-1] == (("What?", ""), 0, "")
    write(tmp_path / "train.tsv", QQP_HEADER + QQP_ROW * 100 + "x\ny\n" + QQP_ROW)
    with pytest.raises(DataError, match=r"line 102: this and 1 other lines .* not 6 tab-separated"):
        QQP(data_dir=str(tmp_path)).rows("train")


def test_mnlis_two_validation_sets_are_read_and_scored_separately(tmp_path, monkeypatch):
    counts = {"validation_matched": 3, "validation_mismatched": 2}
    rows = {
        name: [{"premise": "p", "hypothesis": "h", "label": 2, "idx": i} for i in range(count)]
        for name, count in counts.items()
    }
    load = lambda hub, name, split, revision: (rows[split], "c0ffee")  # noqa: E731
    monkeypatch.setattr(sources, "load_hub", load)
    for name, some in rows.items():
        write_parquet(tmp_path / f"{name}-00000-of-00001.parquet", some)
    for task in (MNLI(source="hub"), MNLI(data_dir=str(tmp_path))):
        subsets = [one.subset for one in task.instances("dev")]
        assert subsets == ["matched"] * 3 + ["mismatched"] * 2
    predictions = answers(task, [(0, 0), (1, 2)], "matched") + answers(task, [(2, 2)], "mismatched")
    assert task.score(predictions) == {"accuracy_matched": 0.5, "accuracy_mismatched": 1.0}
    assert task.score(answers(task, [(0, 1)])) == {"accuracy": 0.0}


def answers(task, pairs, subset=""):
    return [Prediction("", task.classes[p], (task.classes[r],), subset) for p, r in pairs]


def test_qqp_has_accuracy_and_f1_of_duplicates():
    # One hit, one false alarm, two right rejections.
    scores = QQP().score(answers(QQP, [(1, 1), (1, 0), (0, 0), (0, 0)]))
    assert scores == {"accuracy": 0.75, "f1": pytest.approx(2 / 3)}


WORDS = {"label_words": {"negative": "bad", "positive": "good"}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "span"}, "task.mode is 'span'; expected one of head, infill"),
        ({"mode": "infill", "label_words": {"negative": "bad"}}, "no word for positive"),
        (
            {"mode": "infill", "label_words": {"negative": False, "positive": True}},
            "task.label_words is .*expected a valid string$",
        ),
        ({"mode": "infill", "template": "<S1> <S2> [MASK]", **WORDS}, "records have one text"),
    ],
)
def test_impossible_settings_of_glue_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_task({"name": "sst2", **settings})


def test_personas_of_the_validation_file_train_or_evaluate_and_one_more_moves_no_other(tmp_path):
    one = "1 your persona: i am {0}.\n2 hi {0}\tyes {0}\n3 and {0}\tno {0}\n"
    text = "".join(one.format(number) for number in range(10))
    file = write(tmp_path / "valid_self_original_no_cands.txt", text)
    task = PersonaChat(data_dir=str(tmp_path), split_by_persona=0.6)
    train, dev = task.records("train"), task.records("dev")
    assert len(train) + len(dev) == 20
    personas = [{record.segments[0] for record in records} for records in (train, dev)]
    assert all(personas)
    assert not personas[0] & personas[1]
    assert sentences(task.flags()) == ["validation file split by persona, about 60/40"]
    assert "split" not in "".join(sentences(PersonaChat(data_dir=str(tmp_path)).flags()))
    first = "1 your persona: i am new.\n2 hello\tyes, new\t\tno|yes, new\n"
    Path(file).write_text(first + text)
    again = [record for record in task.records("train") if "i am new." not in record.segments[0]]
    assert again == list(train)


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
    example = PersonaChat(max_length=max_length).objective(loaded_letters("|")).encode(RECORD)
    assert example.length <= max_length
    assert (spelled(example.prompt), spelled(example.target)) == (prompt, " ok|")


def test_a_long_dialogue_loses_its_start_and_neither_instruction_nor_delimiter():
    record = TextRecord(("A: hello\n" * 50 + "B: bye",), "They part.")
    example = SAMSum(max_length=80).objective(loaded_letters("^", 10_000)).encode(record)
    assert example.length == 80
    room = 80 - len(INSTRUCTION) - len(DELIMITER) - len(" They part.^")
    assert spelled(example.prompt) == INSTRUCTION + record.source[-room:] + DELIMITER
    assert spelled(example.target) == " They part.^"
    prompt = spelled(prompt_of(SAMSum().objective(loaded_letters("^", 80)), record, room=30))
    assert len(prompt) == 50
    assert prompt.startswith(INSTRUCTION)
    assert prompt.endswith(f"B: bye{DELIMITER}")
