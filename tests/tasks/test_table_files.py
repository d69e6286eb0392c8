"""Files of rows: one pass, and single rows again."""

import csv
import json
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.config.errors import DataError
from dpft.tasks import table_files
from dpft.tasks.own_texts import LanguageModeling
from dpft.tasks.table_files import Rows, read_table, table_file
from tests.tasks.files import write_parquet

ROWS = [
    {"text": "one", "user": "ann"},
    {"text": 'two, "2"', "user": "bob"},
    {"text": "three\n3\r\nDrei", "user": "zoë"},
    {"text": "vier \u2028 \x85 4", "user": "bob"},
]


def as_csv(rows, end):
    cell = '"{}"'.format
    quoted = [[cell(c.replace('"', '""')) for c in (r["text"], r["user"])] for r in rows]
    return end.join(["text,user", *(",".join(cells) for cells in quoted), ""])


def as_lines(rows, end):
    return end.join([*(json.dumps(row, ensure_ascii=False) for row in rows), ""])


def write(folder, form):
    name, _, end = form.partition(" ")
    end = {"": "\n", "crlf": "\r\n", "cr": "\r", "blank": "\n\n", "bom": "\n"}[end]
    path = folder / f"a.{name}"
    if name == "parquet":
        return write_parquet(path, ROWS, row_group_size=3)
    text = as_csv(ROWS, end) if name == "csv" else as_lines(ROWS, end)
    if form == "json":
        text = json.dumps(ROWS)
    mark = b"\xef\xbb\xbf" if form.endswith("bom") else b""
    path.write_bytes(mark + text.encode())
    return path


def scanned(path):
    file = table_file(path)
    positions, numbers, rows = zip(*file.scan(), strict=True)
    return list(rows), Rows(file, np.array(positions), np.array(numbers))


FORMS = [
    *("jsonl", "jsonl crlf", "jsonl cr", "jsonl blank", "jsonl bom", "json", "parquet"),
    *("csv", "csv crlf", "csv cr", "csv blank", "csv bom"),
]


@pytest.mark.parametrize("form", FORMS)
def test_rows_can_be_read_again_in_any_part(tmp_path, form):
    rows, again = scanned(write(tmp_path, form))
    assert [dict(row.values) for row in rows] == ROWS
    assert list(again) == rows
    assert [again[i] for i in (3, 0, -1)] == [rows[3], rows[0], rows[3]]
    assert list(again[1:3]) == rows[1:3]
    assert pickle.loads(pickle.dumps(again[2:])) == rows[2:]


@pytest.mark.parametrize("form", [form for form in FORMS if form[:3] in ("jso", "csv")])
def test_lines_are_those_of_a_text_file(tmp_path, form):
    """As Python numbers them: the reader works on bytes, to know where a row begins."""
    path = write(tmp_path, form)
    if form.startswith("csv"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            before = 0
            numbers = []
            for cells in reader:
                numbers += [before + 1] if cells else []
                before = reader.line_num
            numbers = numbers[1:]
    elif form == "json":
        return
    else:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
        numbers = [n for n, line in enumerate(lines, 1) if line.strip()]
    assert [row.place for row in read_table(path)] == [f"{path}, line {n}" for n in numbers]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_file_that_changes_while_it_is_used_is_refused(tmp_path, form):
    path = write(tmp_path, form)
    _, again = scanned(path)
    data = path.read_bytes()
    path.write_bytes(data + data[-10:])
    with pytest.raises(DataError, match="was changed while it was used"):
        list(again)


def test_another_process_gets_places_and_not_rows(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * 1000}) + "\n" for _ in range(100)))
    _, again = scanned(path)
    assert len(pickle.dumps(again)) < 4000
    task = LanguageModeling(train_file=str(path))
    records = task.records("train")
    assert len(pickle.dumps(records)) < 5000
    assert pickle.loads(pickle.dumps(records[3:9])) == records[3:9]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_file_is_checked_without_being_held_in_memory(tmp_path, form):
    rows = [{"text": f"{i} " + "word " * 400} for i in range(4000)]
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        # Arrow's own memory is not traced; the objects that are made of it are.
        write_parquet(path, rows, row_group_size=500)
    else:
        made = (
            as_lines(rows, "\n")
            if form == "jsonl"
            else "text\n" + "\n".join(row["text"] for row in rows)
        )
        path.write_text(made + "\n")
    task = LanguageModeling(train_file=str(path))
    tracemalloc.start()
    try:
        assert len(task.records("train")) == 4000
        assert sum(len(record.target) for record in task.records("train")) > 8e6
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6e6


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path):
    for name, start in (("a.jsonl", b'{"text": "a"}\n'), ("a.csv", b"text\n")):
        path = tmp_path / name
        path.write_bytes(start + b"\xff\n")
        with pytest.raises(DataError, match=rf"{name}, line 2 is not UTF-8"):
            read_table(Path(path))


@given(cells=st.lists(st.text('ab,"\r\n\u2028', min_size=1).filter(str.strip), min_size=1))
def test_cells_of_a_csv_file_may_have_any_line_ends(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("cells") / "a.csv"
    path.write_bytes(as_csv([{"text": text, "user": "ann"} for text in cells], "\n").encode())
    task = LanguageModeling(train_file=str(path))
    assert [record.target for record in task.records("train")] == cells
    assert task.details("train")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("longest", [27, 28, 29, 64])
def test_lines_are_the_same_however_much_of_them_is_read_at_a_time(
    tmp_path, monkeypatch, end, longest
):
    monkeypatch.setattr(table_files, "LONGEST", longest)
    rows = [{"text": "x" * (n % 12 + 1)} for n in range(50)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_lines(rows, end).encode())
    found, again = scanned(path)
    assert [row.values for row in found] == rows
    assert [row.place for row in found] == [f"{path}, line {n}" for n in range(1, 51)]
    assert list(again) == found


@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_line_that_is_too_long_is_refused_with_its_number(tmp_path, name, end):
    path = tmp_path / name
    line = '{"text": "x"}' if name == "a.jsonl" else "text,user"
    with path.open("w", newline="") as file:
        file.write(f"{line}{end}{line}{end}")
        file.writelines("x" * 2**20 for _ in range(50))
    with pytest.raises(DataError, match=r"line 3 is longer than 10,000,000 bytes"):
        read_table(path)


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.parquet"])
def test_a_text_that_is_too_long_is_refused_with_its_place(tmp_path, name):
    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path, [{"text": "x"}, {"text": "y" * 10_000_001}])
    elif name == "a.json":
        path.write_text(json.dumps([{"text": "x"}, {"text": "y" * 10_000_001}]))
    else:  # of lines that are short enough
        path.write_text('text\nx\n"' + ("y" * 999_999 + "\n") * 11 + '"\n')
    with pytest.raises(DataError, match=r"(line|row|entry) 2.*(10,000,000|field limit)"):
        list(LanguageModeling(train_file=str(path)).records("train"))


def test_a_long_cell_is_read(tmp_path):
    """Python's own limit is 131,072 characters."""
    path = tmp_path / "a.csv"
    path.write_text(f"text\n{'word ' * 60_000}end\n")
    (record,) = LanguageModeling(train_file=str(path)).records("train")
    assert len(record.target) == 300_003
