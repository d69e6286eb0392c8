"""Tables of the papers as data: the strict reader, and the shipped files."""

import textwrap

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce import papers
from dpft.reproduce.papers import PaperError, library

SMALL = """
title: Small
source: Nobody 2020, Table 1
seeds: null
columns:
  bleu: {label: BLEU, decimals: 2, metric: BLEU, better: higher}
rows:
  - is: {method: full, epsilon: 3}
    run: [eps=3]
    printed: {bleu: 60.1}
  - is: {method: full, epsilon: none}
    run: [clip=none]
    printed: {bleu: null}
"""


def written(tmp_path, text, name="1"):
    folder = tmp_path / "nobody2020"
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.yaml"
    file.write_text(textwrap.dedent(text))
    return file


def test_a_small_table_and_its_defaults(tmp_path):
    table = papers.read(written(tmp_path, SMALL))
    assert table.name == "nobody2020/1"
    assert table.seeds is None
    assert table.laptop is None
    (column,) = table.columns
    assert (column.split, column.factor, column.metrics) == ("test", 1.0, ("BLEU",))
    assert column.higher_is_better
    first, second = table.rows
    assert (first.name, second.name) == ("full, 3", "full, none")
    assert first.run == ("eps=3",)
    assert second.printed == {"bleu": None}
    assert table.label_names == ("method", "epsilon")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: Small", "titel: Small", "lacks 'title'"),
        ("seeds: null", "seeds: null\nsetings: []", "unknown key 'setings'.*'setting'"),
        ("seeds: null", "seeds: 0", "seeds is 0; expected greater than or equal to 1"),
        ("better: higher", "better: more", "column bleu, better is 'more'"),
        ("label: BLEU, ", "", "column bleu lacks 'label'"),
        ("{bleu: 60.1}", "{blue: 60.1}", r"row 1 \(full, 3\).*unknown column 'blue'.*'bleu'"),
        ("{bleu: 60.1}", "{bleu: high}", r"row 1 \(full, 3\), printed, bleu is 'high'"),
        ("    run: [clip=none]\n", "", r"row 2 \(full, none\) has none of run, from and why"),
        ("epsilon: none", "epsilon: 3", r"row 2 \(full, 3\) is row 1 again"),
        ("method: full, epsilon: none", "epsilon: none, method: full", "in this order"),
        ("method: full, epsilon: 3", "method: full, epsilon: yes", "epsilon is True"),
        (
            "    run: [eps=3]",
            "    run: [eps=3]\n    epsilons: {clt: 2}",
            "clt is .clt.; expected .rdp.",
        ),
        ("    run: [eps=3]", "    run: [eps=3]\n    ci95: {bleu: [2, 1]}", r"\[low, high\]"),
        ("{bleu: 60.1}", "{bleu: 60.1, bleu: 61}", r"given twice.*line \d+"),
        ("columns:", "columns: [", "is not YAML"),
        ("seeds: null", "seeds: 1\nlaptop: {setting: [], says: x, swap: {a=b: []}}", "is 'a=b'"),
        (
            "seeds: null",
            "seeds: 1\nlaptop: {setting: [], says: x, skip: [{method: all}]}",
            "skip: no row is",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, old, new, said):
    assert old in SMALL
    file = written(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(PaperError, match=rf"(?s)1\.yaml.*{said}"):
        papers.read(file)


def test_names_are_in_natural_order(tmp_path, monkeypatch):
    for name in ("10", "2", "figure-8b", "1b", "1a", "figure-8a", "appendix-s"):
        written(tmp_path, SMALL, name)
    monkeypatch.setattr(library, "ROOT", tmp_path)
    numbers = [name.partition("/")[2] for name in papers.names()]
    assert numbers == ["1a", "1b", "2", "10", "appendix-s", "figure-8a", "figure-8b"]
    with pytest.raises(ConfigError, match=r"no table 'nobody202/2'; did you mean 'nobody2020/2'"):
        papers.load("nobody202", "2")


def test_a_mapping_of_printed_epsilons_by_column(tmp_path):
    text = SMALL.replace(
        "    run: [eps=3]", "    run: [eps=3]\n    epsilons: {prv: {bleu: 2.7}, rdp: 3}"
    )
    row = papers.read(written(tmp_path, text)).rows[0]
    assert row.epsilons == {"prv": {"bleu": 2.7}, "rdp": {None: 3.0}}


def test_every_shipped_table_can_be_read_and_run():
    for name in papers.names():
        table = papers.load(*name.split("/"))
        assert table.name == name
        assert any(column.metrics for column in table.columns)


def test_what_no_file_is_cannot_be_read(tmp_path):
    with pytest.raises(PaperError, match="cannot be read"):
        papers.read(tmp_path / "1.yaml")
