"""Files of published data sets: malformed ones are refused by place, written ones are read back."""

import json
from dataclasses import replace

import pytest

from dpft.config.errors import DataError
from dpft.tasks import TASKS, load_task
from dpft.tasks.dart import DART, Lexicalisation, read_json
from dpft.tasks.e2e import E2E, read_csv
from dpft.tasks.glue import QQP, Columns, read_tsv
from dpft.tasks.personachat import read_lines, read_text
from dpft.tasks.samsum import SAMSum, read_rows
from dpft.tasks.sources import hub_rows
from tests.tasks.files import write

TEXT_TASKS = [name for name, cls in TASKS.items() if ".images:" not in cls]
ENTRY = {"tripleset": [["a", "b", "c"]], "annotations": [{"source": "x", "text": "One."}]}
CHAT = {"personality": ["i sing."], "utterances": [{"candidates": ["a"], "history": ["b"]}]}
SAMSUM = {"id": "1", "dialogue": "A: a", "summary": "s"}
E2E_HEAD = "mr,ref\nname[A],B.\n"


def read_sentences(path):
    return read_tsv(path, Columns(("sentence",), "label", ("0", "1")))


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
        (read_rows, [SAMSUM, {"id": "2", "dialogue": "x"}], "entry 2"),
        (read_rows, [SAMSUM | {"summary": " "}], "entry 1"),
        (read_rows, f"[\n{json.dumps(SAMSUM)}\n3]", "line 3"),
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


TRIPLES = {"tripleset": [["B", "is", "x"]]}
PAIR = {"question1": "A? ", "question2": "B?", "label": 1, "idx": 0}
BOTH = [Lexicalisation(0, (("B", "is", "x"),), "1."), Lexicalisation(0, (("B", "is", "x"),), "2.")]


@pytest.mark.parametrize(
    ("task", "row", "expected"),
    [
        (E2E, {"meaning_representation": "n[A]", "human_reference": "A."}, [("n[A]", "A.")]),
        (QQP, PAIR, [(("A?", "B?"), 1, "")]),
        (DART, TRIPLES | {"target": "1.", "references": []}, BOTH[:1]),
        (DART, TRIPLES | {"target": "1.", "references": ["1.", "2."]}, BOTH),
        (SAMSum, SAMSUM | {"dialogue": None}, [("", "s")]),  # the one that is empty
    ],
)
def test_rows_of_the_hubs_copies(task, row, expected):
    assert hub_rows(task.dataset.hub, [row], "train") == expected
    column = "label" if task is QQP else [*row][-2 if task is DART else -1]
    broken = {name: cell for name, cell in row.items() if name != column}
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
