"""From records to a verdict: which scale counts, and what is said of the rest."""

import pytest

from dpft.reproduce import papers
from dpft.reproduce.claims.claim import CellsCheck, Claim, Expected
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.claims.evaluate import Evidence, evaluate
from dpft.reproduce.claims.show import scale
from dpft.reproduce.tables.plan import merged, planned, words_at
from dpft.reproduce.tables.record_index import make_index
from tests.reproduce.tables.example import PAPERS, plan, run_of, table, write_record

SCORES = {"table": "demo/1", "expected": Expected("above"), "columns": ("bleu",)}
EPSILONS = CellsCheck(
    **SCORES,
    first={"method": ("full",), "epsilon": ("none",)},
    second={"method": ("full",), "epsilon": (3,)},
)
LONG, SHORT = (), ("optim.epochs=1",)
VARIANTS = {
    **SCORES,
    "first": {"variant": ("long",)},
    "second": {"variant": ("short",)},
    "where": {"method": ("full",), "epsilon": (3,)},
    "variants": {"long": LONG, "short": SHORT},
}


@pytest.fixture(autouse=True)
def _demo_only(monkeypatch):
    monkeypatch.setattr(papers, "ROOT", PAPERS)


def evaluated(folder, *checks):
    claim = Claim("demo", "c01", "Privacy costs.", "Table 1", checks or (EPSILONS,))
    return evaluate(claim, Evidence(make_index([folder]), []))


def record(folder, scale, epsilon, bleu):
    run = run_of(plan(scale), "full", epsilon)
    write_record(folder / f"{scale}-{epsilon}", run, 0, {"BLEU": bleu})


def record_variant(folder, words, bleu, seed=0):
    one = table()
    asked = merged(words_at(one, one.columns[0], one.rows[0], "laptop"), words)
    run = planned(asked, "test")
    write_record(folder / f"{len(words)}-{seed}", run, seed, {"BLEU": bleu})


def test_records_fill_a_claim_a_laptops_first(tmp_path):
    nothing = evaluated(tmp_path)
    assert nothing.by_us.verdict is Outcome.NOT_YET
    assert nothing.by_print.verdict is Outcome.HOLDS  # 69 and 60
    laptop = "dpft table demo/1 scale=laptop --seeds 0,1,2 --run"
    assert nothing.commands == [laptop, "dpft table demo/1 --run"]
    record(tmp_path, "laptop", 3, 0.30)
    record(tmp_path, "laptop", "none", 0.20)
    trend = evaluated(tmp_path)
    assert (trend.by_us.verdict, trend.sides) == (Outcome.FAILS, (Side.LAPTOP,))
    assert scale(trend) == "laptop scale, trend only"
    assert trend.commands == ["dpft table demo/1 --run"]
    record(tmp_path, "paper", 3, 0.60)
    record(tmp_path, "paper", "none", 0.70)
    whole = evaluated(tmp_path)
    assert (whole.by_us.verdict, whole.sides) == (Outcome.HOLDS, (Side.PAPER,))
    assert [one.outcome for one in whole.aside] == [Outcome.FAILS]  # the laptop's, still listed
    assert whole.commands == []
    assert scale(whole) == "paper scale"


def test_variants_of_a_row_are_compared_where_the_paper_scale_has_none(tmp_path):
    record_variant(tmp_path, LONG, 0.60)
    record_variant(tmp_path, LONG, 0.62, seed=1)
    empty = evaluated(tmp_path, CellsCheck(**VARIANTS))
    assert [one.outcome for one in empty.ours] == [Outcome.NOT_YET]
    record_variant(tmp_path, SHORT, 0.40)
    found = evaluated(tmp_path, CellsCheck(**VARIANTS))
    (one,) = found.ours
    assert (one.side, one.outcome) == (Side.LAPTOP, Outcome.HOLDS)
    assert one.numbers["first"] == pytest.approx(61)
    # The deviation of the two seeds, 1.41, and no 1%.
    assert one.numbers["margin"] == pytest.approx(2 * 2**0.5 + 0.005)
    assert "L" in one.marks
    assert len(one.runs) == 3
    assert all(command.startswith("dpft train task=e2e") for command in found.commands)
    assert len(found.commands) == 2  # the paper's
