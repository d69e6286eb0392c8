"""Comparisons of cells, by tables of two rows whose outcome can be worked out by hand."""

import pytest

from dpft.reproduce.claims.cells import compare_cells
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.papers import PaperError
from dpft.reproduce.tables.marks import Mark
from tests.reproduce.claims.example import Evidence, check, row

A, B = {"method": "full", "epsilon": 3}, {"method": "LoRA", "epsilon": 3}
FULL, LORA = {"method": "full"}, {"method": "LoRA"}


def compared(the_check, evidence, side=Side.PRINTED):
    return [one for one in compare_cells(the_check, evidence)[0] if one.side is side]


def printed(kind, first, second, *, higher=True, low=None, high=None, **more):
    evidence = Evidence(row(A, first, **more), row(B, second, **more), higher=higher)
    (one,) = compared(check(kind, FULL, LORA, low=low, high=high), evidence)
    return one


@pytest.mark.parametrize(
    ("kind", "first", "outcome"),
    [
        ("above", 90.0, Outcome.HOLDS),
        # 1% of the larger, and half a unit of the only decimal: 0.8535.
        ("above", 85.0 + 0.8, Outcome.CLOSE),
        ("above", 85.0 + 1.0, Outcome.HOLDS),
        ("above", 85.0 - 0.8, Outcome.CLOSE),
        ("above", 80.0, Outcome.FAILS),
        ("not_below", 85.0 - 0.8, Outcome.HOLDS),
        ("not_below", 95.0, Outcome.HOLDS),
        ("not_below", 84.0, Outcome.FAILS),
        ("on_par", 84.3, Outcome.HOLDS),
        ("on_par", 87.0, Outcome.FAILS),
        ("on_par", 83.0, Outcome.FAILS),
    ],
)
def test_the_margin_decides_what_counts(kind, first, outcome):
    one = printed(kind, first, 85.0)
    assert one.outcome is outcome
    assert one.numbers["ahead"] == pytest.approx(first - 85.0)
    assert one.ahead is (first > 85.0)


def test_lower_may_be_better():
    assert printed("above", 20.0, 30.0, higher=False).outcome is Outcome.HOLDS
    assert printed("above", 30.0, 20.0, higher=False).outcome is Outcome.FAILS


def test_a_printed_deviation_takes_the_place_of_one_per_cent():
    assert printed("above", 90.0, 85.0, std=2.4).outcome is Outcome.HOLDS
    assert printed("above", 90.0, 85.0, std=2.5).outcome is Outcome.CLOSE
    assert printed("above", 85.5, 85.0, std=0.2).outcome is Outcome.HOLDS


def test_a_laptops_numbers_have_no_printed_deviation():
    rows = (row(A, 90.0, std=5.0, ours=70.0), row(B, 90.0, std=5.0, ours=65.0))
    assert (
        compared(check("above", FULL, LORA), Evidence(*rows), Side.LAPTOP)[0].outcome
        is Outcome.HOLDS
    )
    assert (
        compared(check("above", FULL, LORA), Evidence(*rows), Side.PAPER)[0].outcome
        is Outcome.CLOSE
    )
    noisy = (row(A, 90.0, ours=70.0, deviation=3.0), row(B, 90.0, ours=65.0, deviation=0.1))
    assert (
        compared(check("above", FULL, LORA), Evidence(*noisy), Side.LAPTOP)[0].outcome
        is Outcome.CLOSE
    )


@pytest.mark.parametrize(
    ("first", "outcome"),
    [(88.0, Outcome.HOLDS), (90.0, Outcome.HOLDS), (90.7, Outcome.FAILS), (87.8, Outcome.FAILS)],
)
def test_a_range_of_printed_numbers_is_arithmetic(first, outcome):
    assert printed("apart", first, 85.0, low=3.0, high=5.0).outcome is outcome


def test_a_range_of_our_numbers_has_the_margin():
    rows = (row(A, 90.0, ours=90.7), row(B, 85.0, ours=85.0))
    evidence = Evidence(*rows)
    the_check = check("apart", FULL, LORA, low=3.0, high=5.0)
    (one,) = compared(the_check, evidence, Side.PAPER)
    assert one.outcome is Outcome.CLOSE


def test_ratios_say_nothing_of_better():
    one = printed("ratio", 23.52, 20.38, high=1.1, higher=False)
    assert one.outcome is Outcome.FAILS
    assert "ratio 1.154" in one.text
    assert one.ahead is None
    assert printed("ratio", 22.0, 20.38, high=1.1, higher=False).outcome is Outcome.HOLDS


def test_a_number_of_the_text_that_the_table_has_elsewhere():
    evidence = Evidence(row(A, 64.18), row(B, 64.64), decimals=2)
    (one,) = compared(check("value", FULL, low=64.6, high=64.6), evidence)
    assert one.outcome is Outcome.FAILS
    assert "LoRA, 3" in one.text
    (one,) = compared(check("value", LORA, low=64.6, high=64.6), evidence)
    assert one.outcome is Outcome.HOLDS  # as the text rounds


def test_the_best_of_some_against_the_best_of_all_others():
    rows = [row({"rate": r, "batch": b}, v) for r, b, v in ((1, 1, 50.0), (1, 2, 60.0), (2, 2, 40))]
    (one,) = compared(check("best", {"rate": 1, "batch": 2}), Evidence(*rows))
    assert one.outcome is Outcome.HOLDS
    assert one.text.startswith("60.0 (1, 2) and 50.0 (1, 1)")
    # By rate alone, batches are compared apart, and batch 1 has but one rate.
    (one,) = compared(check("best", {"rate": 2}), Evidence(*rows))
    assert one.outcome is Outcome.FAILS
    assert "(2)" in one.what


def test_a_dash_is_no_number_and_takes_nothing_from_the_best():
    rows = [row({"rate": r}, v) for r, v in ((1, 50.0), (2, None), (3, 40.0))]
    (one,) = compared(check("best", {"rate": 1}), Evidence(*rows))
    assert one.outcome is Outcome.HOLDS
    the_check = check("above", {"rate": 1}, {"rate": [2, 3]})
    assert len(compared(the_check, Evidence(*rows))) == 1


def test_ours_are_compared_with_what_the_paper_copied():
    rows = (row(A, 80.0, ours=88.0), row(B, 85.0, source="Somebody 2019"))
    (one,) = compared(check("above", FULL, LORA), Evidence(*rows), Side.PAPER)
    assert one.outcome is Outcome.HOLDS
    assert "85.0 (copied)" in one.text
    (one,) = compared(check("above", FULL, LORA), Evidence(*rows), Side.LAPTOP)
    assert one.outcome is Outcome.CANNOT
    assert "Somebody 2019" in one.why
    both = (row(A, 80.0, source="Somebody 2019"), row(B, 85.0, source="Somebody 2019"))
    (one,) = compared(check("above", FULL, LORA), Evidence(*both), Side.PAPER)
    assert one.outcome is Outcome.CANNOT


@pytest.mark.parametrize("kind", ["not_below", "on_par"])
def test_seeds_far_apart_show_nothing_to_be_as_good(kind):
    for marks, outcome in (((), Outcome.HOLDS), ((Mark.WIDE,), Outcome.CLOSE)):
        rows = (row(A, 0.0, ours=65.0, deviation=9.0, marks=marks), row(B, 0.0, ours=70.0))
        (one,) = compared(check(kind, FULL, LORA), Evidence(*rows), Side.LAPTOP)
        assert one.outcome is outcome


@pytest.mark.parametrize(
    ("kind", "first", "outcome"),
    [
        ("above", 74.0, Outcome.CLOSE),
        ("above", 76.1, Outcome.HOLDS),
        ("above", 66.5, Outcome.CLOSE),
        ("above", 63.9, Outcome.FAILS),
        ("not_below", 66.5, Outcome.CLOSE),  # as good cannot be told either
        ("not_below", 76.1, Outcome.HOLDS),
        ("on_par", 70.0, Outcome.CLOSE),
        ("on_par", 63.9, Outcome.FAILS),
    ],
)
def test_shares_of_few_records_tell_little(kind, first, outcome):
    rows = (row(A, 0.0, ours=first), row(B, 0.0, ours=70.0, sampling=3.0))
    (one,) = compared(check(kind, FULL, LORA), Evidence(*rows), Side.LAPTOP)
    assert one.outcome is outcome
    assert one.numbers["margin"] == 6.0


def test_stand_ins_at_the_papers_scale_are_a_trend_among_themselves():
    marks = (Mark.MODEL,)
    # The printed deviation would make this too close.
    rows = (row(A, 80.0, std=5.0, ours=70.0, marks=marks), row(B, 85.0, std=5.0, ours=65.0))
    the_check, evidence = check("above", FULL, LORA), Evidence(*rows)
    (paper,) = compared(the_check, evidence, Side.PAPER)
    assert paper.outcome is Outcome.LACKING
    (trend,) = compared(the_check, evidence, Side.STAND_IN)
    assert (trend.outcome, trend.marks) == (Outcome.HOLDS, "M")


def test_stand_ins_are_not_compared_with_copied_numbers_nor_with_the_text():
    ours = row(A, 80.0, ours=88.0, marks=(Mark.MODEL,))
    evidence = Evidence(ours, row(B, 85.0, source="Somebody 2019"))
    for the_check in (check("above", FULL, LORA), check("value", FULL, low=88.0, high=88.0)):
        (paper,) = compared(the_check, evidence, Side.PAPER)
        assert paper.outcome is Outcome.LACKING
        assert not compared(the_check, evidence, Side.STAND_IN)


def test_what_has_not_run_and_what_never_will():
    rows = (row(A, 80.0, ours=88.0), row(B, 85.0))
    (one,) = compared(check("above", FULL, LORA), Evidence(*rows), Side.PAPER)
    assert one.outcome is Outcome.LACKING
    rows = (row(A, 80.0), row(B, 85.0, why="GPT-3 is not public"))
    (one,) = compared(check("above", FULL, LORA), Evidence(*rows), Side.PAPER)
    assert (one.outcome, one.why) == (Outcome.CANNOT, "GPT-3 is not public")


def test_pairs_agree_in_what_nobody_named():
    rows = [
        row({"method": m, "epsilon": e}, v)
        for m, e, v in (("full", 3, 60.0), ("full", 8, 70.0), ("LoRA", 3, 50.0), ("LoRA", 8, 55.0))
    ]
    found = compared(check("above", FULL, LORA), Evidence(*rows))
    assert [one.numbers["ahead"] for one in found] == [10.0, 15.0]
    found = compared(check("above", FULL, LORA, free=["epsilon"]), Evidence(*rows))
    assert len(found) == 4
    found = compared(check("above", FULL, LORA, where={"epsilon": 8}), Evidence(*rows))
    assert [one.numbers["ahead"] for one in found] == [15.0]


@pytest.mark.parametrize(
    ("the_check", "message"),
    [
        (check("above", {"methd": "full"}, LORA), "no label 'methd'; did you mean 'method'"),
        (check("above", {"method": "ful"}, LORA), "method 'ful'; did you mean 'full'"),
        (check("above", FULL, LORA, where={"epsilon": 8}), "demo/1 has no epsilon 8"),
        (check("above", FULL, LORA, columns=["accc"]), "no column 'accc'; did you mean 'acc'"),
        (check("above", FULL, LORA, free=["epsilom"]), "no label 'epsilom'"),
        (check("above", {"method": "full", "epsilon": 3}, FULL), "compares nothing in demo/1"),
    ],
)
def test_what_no_table_has_is_an_error(the_check, message):
    evidence = Evidence(row(A, 80.0), row(B, 85.0))
    with pytest.raises(PaperError, match=message):
        compare_cells(the_check, evidence)
