"""Tables of the papers as data: what their files may hold, and what is refused."""

import pytest

from dpft.reproduce import papers
from dpft.reproduce.papers import PaperError

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
    file.write_text(text)
    return file


def refused(read, tmp_path, text, old, new, place):
    assert old in text
    file = written(tmp_path, text.replace(old, new, 1))
    with pytest.raises(PaperError, match=rf"(?s)1\.yaml.*{place}"):
        read(file)


def test_a_small_table_and_its_defaults(tmp_path):
    epsilons = "    run: [eps=3]\n    epsilons: {prv: {bleu: 2.7}, rdp: 3}"
    table = papers.read(written(tmp_path, SMALL.replace("    run: [eps=3]", epsilons)))
    assert (table.name, table.seeds, table.laptop) == ("nobody2020/1", None, None)
    (column,) = table.columns
    assert (column.split, column.factor, column.metrics) == ("test", 1.0, ("BLEU",))
    assert column.higher_is_better
    first, second = table.rows
    assert (first.name, second.name) == ("full, 3", "full, none")
    assert first.epsilons == {"prv": {"bleu": 2.7}, "rdp": {None: 3.0}}
    assert second.printed == {"bleu": None}
    assert table.label_names == ("method", "epsilon")


LAPTOP = "seeds: 1\nlaptop: {setting: [], says: x, "


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("title: Small", "titel: Small", "title"),
        ("seeds: null", "seeds: null\nsetings: []", "setings"),
        ("better: higher", "better: more", "columns.0.better"),
        ("{bleu: 60.1}", "{blue: 60.1}", "'blue'"),
        ("{bleu: 60.1}", "{bleu: high}", "rows.0.printed.bleu"),
        ("    run: [clip=none]\n", "", "rows.1"),
        ("epsilon: none", "epsilon: 3", "full, 3"),  # the same labels again
        ("method: full, epsilon: none", "epsilon: none, method: full", "method"),
        ("method: full, epsilon: 3", "method: full, epsilon: yes", "rows.0.is.epsilon"),
        ("    run: [eps=3]", "    run: [eps=3]\n    ci95: {bleu: [2, 1]}", "rows.0.ci95.bleu"),
        ("{bleu: 60.1}", "{bleu: 60.1, bleu: 61}", "given twice"),
        ("seeds: null", f"{LAPTOP}swap: {{a=b: []}}}}", "laptop.swap"),
        ("seeds: null", f"{LAPTOP}skip: [{{method: all}}]}}", "laptop.skip"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, old, new, place):
    refused(papers.read, tmp_path, SMALL, old, new, place)
