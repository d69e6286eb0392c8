"""Files of rows: every form gives the same records, and a bad file one clear error."""

import gzip
import json
import os
import tempfile

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.config.errors import DataError
from dpft.tasks import table_files
from dpft.tasks.own_texts import LanguageModeling
from dpft.tasks.table_files import read_table
from tests.tasks.files import write_parquet

ROWS = [
    {"text": "one", "user": "ann"},
    {"text": 'two, "2"', "user": "NA"},
    {"text": "three\n3\r\nDrei", "user": "007"},
    {"text": "vier \u2028 \x85 4", "user": "zoë"},
]
ENDS = {"": "\n", "crlf": "\r\n", "blank": "\n\n", "bom": "\n"}
FORMS = [f"{name} {how}".strip() for name in ("jsonl", "csv", "tsv") for how in ENDS]


def write(folder, form, rows=ROWS):
    name, _, how = form.partition(" ")
    path = folder / f"a.{name}"
    if name == "parquet":
        return write_parquet(path, rows, row_group_size=3)
    end = ENDS[how]
    if name in ("csv", "tsv", "CSV"):
        mark = "\t" if name == "tsv" else ","
        cells = [["text", "user"], *(['"{}"'.format(c.replace('"', '""')) for c in row.values()]
                                     for row in rows)]  # fmt: skip
        text = end.join([*(mark.join(row) for row in cells), ""])
    else:
        text = end.join([*(json.dumps(row, ensure_ascii=False) for row in rows), ""])
    if form == "json":
        text = json.dumps(rows, indent=1)
    path.write_bytes((b"\xef\xbb\xbf" if how == "bom" else b"") + text.encode())
    return path


@pytest.mark.parametrize("form", [*FORMS, "json", "parquet", "CSV"])
def test_every_form_gives_the_same_rows_in_any_part(tmp_path, monkeypatch, form):
    monkeypatch.setattr(table_files, "_BLOCK", 3)
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rows = read_table(write(tmp_path, form))
    assert not [*folder.iterdir()], "private texts have a name on disk"
    assert [row.values for row in rows] == ROWS
    assert [rows[i].values for i in (3, 0, -1)] == [ROWS[3], ROWS[0], ROWS[3]]
    for part in (slice(1, 3), slice(None, None, -2), slice(9, 12)):
        assert [row.values for row in rows[part]] == ROWS[part]


@given(cells=st.lists(st.text('ab,"\r\n\0\u2028', min_size=1).filter(str.strip), min_size=1))
def test_cells_of_a_csv_file_may_have_any_line_ends(tmp_path_factory, cells):
    rows = [{"text": text, "user": "ann"} for text in cells]
    path = write(tmp_path_factory.mktemp("cells"), "csv", rows)
    task = LanguageModeling(train_file=str(path))
    assert [record.target for record in task.records("train")] == cells
    assert task.details("train")


TEXTS = ["one, two", "three"]
LINES = '{"text": "one, two"}\n{"text": "three"}\n'
# Forms as other tools write them, with what is typed and what is guessed.
READ = {
    "semicolons.csv": ("n;text\n1;one, two\n2;three\n", None, ";"),
    "tabs.csv": ("text\tn\none, two\t1\nthree\t2\n", None, "\t"),
    "bars.csv": ("text|n\none, two|1\nthree|2\n", None, "|"),
    "two marks.csv": ('text,a|b\n"one, two",1\nthree,2\n', None, ","),
    "typed.csv": ("text;a,b\none, two;1\nthree;2\n", ";", ";"),
    "one text a line.csv": ("text\none, two\nthree\n", "|", None),
    "one column.csv": ('text\n"one, two"\nthree\n', None, ","),
    "all in quotes.csv": ('"n";"text"\n"1";"one, two"\n"2";"three"\n', None, ";"),
    "rows with numbers.csv": (',text\n0,"one, two"\n1,three\n', None, ","),
    "delimiters behind.csv": ('text,\n"one, two",\nthree,\n', None, ","),
    "blank lines first.csv": ('\n\ntext\n"one, two"\nthree\n', None, ","),
    "as Excel writes it.csv": ("sep=;\nn;text\n1;one, two\n2;three\n", None, ";"),
    "a key first.csv": ('PK,text\n1,"one, two"\n2,three\n', None, ","),
    "lines.json": (LINES, None, None),
    "list.jsonl": ('[{"text": "one, two"}, {"text": "three"}]', None, None),
}


@pytest.mark.parametrize("name", READ)
def test_forms_of_other_tools_are_read_and_a_guess_is_printed(tmp_path, name):
    content, typed, found = READ[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    task = LanguageModeling(train_file=str(tmp_path / name), delimiter=typed)
    assert [record.target for record in task.records("train")] == TEXTS
    guessed = [line for line in task.details("train") if "task.delimiter" in line]
    assert len(guessed) == (typed is None and found not in (None, ","))


TWICE = pyarrow.Table.from_arrays([["x"], ["a"], ["b"]], names=["label", "text", "text"])
GREEN = "text\ngr\xfcn\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("b.csv", " text, label\na,b\n", r"""found ' text', .*Type 'task.text_column=" text"'"""),
        ("a.csv", "It never came,x\nThank you,y\n", "If the first line is a row, put the names"),
        ("a.csv", "Text,n\na,b\n", "found 'Text', 'n'. Type task.text_column=Text"),
        ("a.tsv", "text,n\na,b\n", "found 'text,n'. .* or task.delimiter=','"),
        ("a.jsonl", "", r"a\.jsonl has no rows"),
        ("a.jsonl", '{"text": "a"}\n{"text": ', r"a\.jsonl, line 2: .*expected JSON"),
        ("a.jsonl", '{"text": "a"}\n' + "[" * 20_000, "line 2: it is nested too deep"),
        ("a.jsonl", '{"text": "a"}\n["text"]', r"line 2: got \['text'\]; expected a JSON object"),
        ("a.json", '[{"text": "a"}, 3]', r"a\.json, entry 2: got 3"),
        ("a.json", '{"data": [{"text": "a"}]}', r"type jq -c '.\[\"data\"\]\[\]' FILE"),
        ("a.json", '{"n": [], "m": [1]}', "found 'n', 'm'. Type task.text_column=NAME"),
        ("a.jsonl", '{"text": 5}', r"line 1: column 'text' is 5 \(int\); expected text"),
        ("a.jsonl", '{"text": " "}', "line 1: column 'text' is empty"),
        ("a.jsonl", '{"text": "\\ud800"}', "line 1, column 'text': got .* no valid Unicode"),
        ("a.csv", "text,text\na,b\n", "line 1: column 'text' is there twice"),
        ("a.csv", 'text,n\n"a\nb",c\nd\n', "line 4: got 1 cells for 2 columns"),
        ("a.csv", "text\nOne, two\n", r"type task.delimiter='\|' if each line is one text"),
        ("a.csv", 'text\n"a"b\n', "after line 1.*expected cells in double quotes"),
        ("a.csv", GREEN.encode("cp1252"), "line 2 is not UTF-8.*type iconv -f cp1252 -t utf-8"),
        ("a.csv", b"text\nWei\xc3\x9f\ngr\xfcn\n", "line 3 is not UTF-8.*other lines are: convert"),
        ("a.jsonl", '{"text": "a"}'.encode("utf-16"), "is UTF-16 text.*type iconv -f utf-16 "),
        ("a.csv", GREEN.encode("utf-16-le"), "UTF-16 text without its mark; .* -f utf-16le "),
        ("a.csv", GREEN.encode("utf-32"), "is UTF-32 text; .* -f utf-32 "),
        ("a.csv", gzip.compress(GREEN.encode()), "type gunzip -c"),
        ("a.csv", b"PK\x03\x04\xa0", "save it as CSV UTF-8"),
        ("a.csv", b"\xd0\xcf\x11\xe0\0", "nor is it text in another encoding"),
        ("a.csv", b"PAR1\x15\x04", "give it the suffix .parquet"),
        ("a.csv", "version https://git-lfs.github.com/spec/v1\n", "type git lfs pull"),
        ("a.csv", "<!DOCTYPE html>\n", "is a web page"),
        ("a.xlsx", "PK", "has suffix '.xlsx'; expected one of"),
        ("a.tsv", 'text\tn\n"I came.\tx\nI left."\ty\n', "line 2: got a cell in quotes with tabs"),
        ("a.parquet", "nonsense", "not a parquet file"),
        ("a.parquet", TWICE, r"a\.parquet: column 'text' is there twice"),
        ("a.jsonl", '{"text": "x"}\nLONG', "line 2 is longer than 10,000,000 bytes"),
        (
            "a.json",
            '[{"text": "x"}, {"text": "LONG"}]',
            "entry 2, column 'text': got a text of 52,428,800",
        ),
        ("a.csv", None, "a.csv: No such file"),
        ("a.csv", "fifo", "it is a pipe"),
    ],
)
def test_a_bad_file_is_an_error_with_its_place(tmp_path, name, text, message):
    file = tmp_path / name
    if isinstance(text, str):
        text = text.replace("LONG", "x" * 50 * 2**20)
    if text == "fifo":
        os.mkfifo(file)
    elif text is TWICE:
        pyarrow.parquet.write_table(text, file)
    elif text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        list(LanguageModeling(train_file=str(file)).records("train"))
