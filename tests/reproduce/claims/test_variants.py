"""Runs beside a table's, by records written by hand."""

import pytest

from dpft.reproduce.claims.cells import Evidence
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.claims.evaluate import evaluate
from dpft.reproduce.claims.schema import CellsCheck, Claim, Expected
from dpft.reproduce.papers import PaperError, library
from dpft.reproduce.tables.composition import Composer
from dpft.reproduce.tables.found import make_index
from dpft.reproduce.tables.plan import merged, planned, words_at
from tests.reproduce.tables.example import PAPERS, table, write_record

LONG, SHORT = (), ("optim.epochs=1",)


@pytest.fixture(autouse=True)
def _demo_only(monkeypatch):
    monkeypatch.setattr(library, "ROOT", PAPERS)


def claim(**changed):
    check = {
        "table": "demo/1",
        "expected": Expected("above"),
        "first": {"variant": ("long",)},
        "second": {"variant": ("short",)},
        "where": {"method": ("full",), "epsilon": (3,)},
        "columns": ("bleu",),
        "variants": {"long": LONG, "short": SHORT},
    }
    return Claim("demo", "c01", "Long is better.", "Table 1", (CellsCheck(**check | changed),))


def result(folder, **changed):
    with Composer() as composer:
        return evaluate(claim(**changed), Evidence(make_index([folder]), [], composer))


def record(folder, words, bleu, seed=0):
    one = table()
    with Composer() as composer:
        asked = merged(words_at(one, one.columns[0], one.rows[0], "laptop"), words)
        run = planned(asked, "test", composer)
    write_record(folder / f"{len(words)}-{seed}", run, seed, {"BLEU": bleu})


def test_runs_of_a_laptop_are_compared_where_the_paper_scale_has_none(tmp_path):
    record(tmp_path, LONG, 0.60)
    record(tmp_path, LONG, 0.62, seed=1)
    empty = result(tmp_path)
    assert [one.outcome for one in empty.ours] == [Outcome.LACKING]
    record(tmp_path, SHORT, 0.40)
    found = result(tmp_path)
    (one,) = found.ours
    assert (one.side, one.outcome) == (Side.LAPTOP, Outcome.HOLDS)
    assert one.numbers["first"] == pytest.approx(61)
    # The deviation of the two seeds, 1.41, and no 1%.
    assert one.numbers["margin"] == pytest.approx(2 * 2**0.5 + 0.005)
    assert "L" in one.marks
    assert len(one.runs) == 3
    assert all(command.startswith("dpft train task=e2e") for command in found.commands)
    assert len(found.commands) == 2  # the paper's


def test_what_is_not_there_is_an_error(tmp_path):
    for changed, message in (
        ({"where": {"method": ("theirs",)}}, "no row of demo/1 with .* can be run"),
        ({"columns": ("blue",)}, "no column 'blue'"),
        ({"first": {"variant": ("lang",)}}, "no variant 'lang'; did you mean 'long'"),
        ({"variants": {"long": LONG, "short": ("optim.epoch=1",)}}, "unknown setting optim.epoch"),
    ):
        with pytest.raises(PaperError, match=message):
            result(tmp_path, **changed)
