"""Comparisons of cells, by tables of two rows whose outcome can be worked out by hand."""

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from dpft.reproduce.claims.cells import compare_cells
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.papers import PaperError
from dpft.reproduce.tables.marks import Mark
from dpft.reproduce.tables.record_index import IndexedRun
from tests.reproduce.claims.example import Evidence, check, row

A, B = {"method": "full", "epsilon": 3}, {"method": "LoRA", "epsilon": 3}
FULL, LORA = {"method": "full"}, {"method": "LoRA"}
HOLDS, FAILS, CLOSE = Outcome.HOLDS, Outcome.FAILS, Outcome.CLOSE


def compared(the_check, *rows, side=Side.PRINTED, **table):
    found = compare_cells(the_check, Evidence(*rows, **table))[0]
    return [one for one in found if one.side is side]


def printed(kind, first, second, ends=(None, None), *, higher=True, **more):
    """The only comparison of two printed numbers."""
    rows = (row(A, first, **more), row(B, second, **more))
    (one,) = compared(check(kind, FULL, LORA, ends=ends), *rows, higher=higher)
    return one


def ours(kind, first, second, side, **ends):
    """The only comparison of two numbers of ours: each with what `row` takes."""
    rows = (row(A, **{"printed": 0.0} | first), row(B, **{"printed": 0.0} | second))
    (one,) = compared(check(kind, FULL, LORA, **ends), *rows, side=side)
    return one


@pytest.mark.parametrize(
    ("kind", "first", "outcome"),
    [
        ("above", 90.0, HOLDS),
        # 1% of the larger, and half a unit of the only decimal: 0.8535.
        ("above", 85.0 + 0.8, CLOSE),
        ("above", 85.0 + 1.0, HOLDS),
        ("above", 85.0 - 0.8, CLOSE),
        ("above", 80.0, FAILS),
        ("not_below", 85.0 - 0.8, HOLDS),
        ("not_below", 95.0, HOLDS),
        ("not_below", 84.0, FAILS),
        ("on_par", 84.3, HOLDS),
        ("on_par", 87.0, FAILS),
        ("on_par", 83.0, FAILS),
    ],
)
def test_the_margin_decides_what_counts(kind, first, outcome):
    one = printed(kind, first, 85.0)
    assert one.outcome is outcome
    assert one.numbers["ahead"] == pytest.approx(first - 85.0)
    assert one.ahead is (first > 85.0)


def test_lower_may_be_better():
    assert printed("above", 20.0, 30.0, higher=False).outcome is HOLDS
    assert printed("above", 30.0, 20.0, higher=False).outcome is FAILS


def test_a_printed_deviation_takes_the_place_of_one_per_cent():
    assert printed("above", 90.0, 85.0, std=2.4).outcome is HOLDS
    assert printed("above", 90.0, 85.0, std=2.5).outcome is CLOSE
    assert printed("above", 85.5, 85.0, std=0.2).outcome is HOLDS


def test_a_laptops_numbers_have_no_printed_deviation():
    first, second = ({"printed": 90.0, "std": 5.0, "ours": x} for x in (70.0, 65.0))
    assert ours("above", first, second, Side.LAPTOP).outcome is HOLDS
    assert ours("above", first, second, Side.PAPER).outcome is CLOSE
    noisy = ({"ours": 70.0, "deviation": 3.0}, {"ours": 65.0, "deviation": 0.1})
    assert ours("above", *noisy, Side.LAPTOP).outcome is CLOSE


@pytest.mark.parametrize(
    ("first", "outcome"), [(88.0, HOLDS), (90.0, HOLDS), (90.7, FAILS), (87.8, FAILS)]
)
def test_a_range_of_printed_numbers_is_arithmetic(first, outcome):
    assert printed("apart", first, 85.0, (3.0, 5.0)).outcome is outcome


def test_a_range_of_our_numbers_has_the_margin():
    one = ours("apart", {"ours": 90.7}, {"ours": 85.0}, Side.PAPER, ends=(3.0, 5.0))
    assert one.outcome is CLOSE


def test_ratios_say_nothing_of_better():
    one = printed("ratio", 23.52, 20.38, (None, 1.1), higher=False)
    assert (one.outcome, one.ahead) == (FAILS, None)
    assert "ratio 1.154" in one.text
    assert printed("ratio", 22.0, 20.38, (None, 1.1), higher=False).outcome is HOLDS


def test_a_number_of_the_text_that_the_table_has_elsewhere():
    rows = (row(A, 64.18), row(B, 64.64))
    (one,) = compared(check("value", FULL, ends=(64.6, 64.6)), *rows, decimals=2)
    assert one.outcome is FAILS
    assert "LoRA, 3" in one.text
    (one,) = compared(check("value", LORA, ends=(64.6, 64.6)), *rows, decimals=2)
    assert one.outcome is HOLDS  # as the text rounds


def test_the_best_of_some_against_the_best_of_all_others():
    rows = [row({"rate": r, "batch": b}, v) for r, b, v in ((1, 1, 50.0), (1, 2, 60.0), (2, 2, 40))]
    (one,) = compared(check("best", {"rate": 1, "batch": 2}), *rows)
    assert one.outcome is HOLDS
    assert one.text.startswith("60.0 (1, 2) and 50.0 (1, 1)")
    # By rate alone, batches are compared apart, and batch 1 has but one rate.
    (one,) = compared(check("best", {"rate": 2}), *rows)
    assert one.outcome is FAILS
    assert "(2)" in one.what


def test_a_dash_is_no_number_and_takes_nothing_from_the_best():
    rows = [row({"rate": r}, v) for r, v in ((1, 50.0), (2, None), (3, 40.0))]
    (one,) = compared(check("best", {"rate": 1}), *rows)
    assert one.outcome is HOLDS
    assert len(compared(check("above", {"rate": 1}, {"rate": [2, 3]}), *rows)) == 1


def test_ours_are_compared_with_what_the_paper_copied():
    own, copied = {"ours": 88.0}, {"printed": 85.0, "source": "Somebody 2019"}
    one = ours("above", own, copied, Side.PAPER)
    assert one.outcome is HOLDS
    assert "85.0 (copied)" in one.text
    one = ours("above", own, copied, Side.LAPTOP)
    assert one.outcome is Outcome.CANNOT
    assert "Somebody 2019" in one.why
    assert ours("above", copied, copied, Side.PAPER).outcome is Outcome.CANNOT


@pytest.mark.parametrize("kind", ["not_below", "on_par"])
def test_seeds_far_apart_show_nothing_to_be_as_good(kind):
    for marks, outcome in (((), HOLDS), ((Mark.WIDE,), CLOSE)):
        wide = {"ours": 65.0, "deviation": 9.0, "marks": marks}
        assert ours(kind, wide, {"ours": 70.0}, Side.LAPTOP).outcome is outcome


@pytest.mark.parametrize("kind", ["above", "not_below", "on_par"])
@pytest.mark.parametrize("first", [50.0, 51.0])
def test_settings_that_learned_nothing_show_nothing(kind, first):
    idle = {"ours": 51.0, "marks": (Mark.CONSTANT,)}
    one = ours(kind, idle | {"ours": first}, idle, Side.LAPTOP)
    assert one.outcome is CLOSE
    assert one.text.endswith("neither is better than always giving the most frequent answer")
    # Beside one that learned something it counts.
    one = ours(kind, idle | {"ours": first}, {"ours": 80.0}, Side.LAPTOP)
    assert (one.outcome, one.idle) == (FAILS, True)
    assert one.text.endswith("; the first is no better than always giving the most frequent answer")


@pytest.mark.parametrize(("marks", "outcome"), [((), HOLDS), ((Mark.CONSTANT,), Outcome.NOT_APART)])
def test_seeds_that_learned_nothing_show_nothing(marks, outcome):
    first, second = (
        {"ours": value, "marks": marks, "by_seed": dict.fromkeys(range(3), value)}
        for value in (51.0, 50.0)
    )
    one = ours("above", first, second, Side.LAPTOP)
    assert (one.outcome, one.paired is None) == (outcome, False)


@pytest.mark.parametrize("seeds", [{}, {0: 75.0, 1: 76.0}])
@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ([{("rung", "a")}, {("rung", "b")}], True),
        ([{("rung", "a")}, {("rung", "a")}], False),
        ([{("rung", "a"), ("rung", "b")}, {("rung", "a")}], True),  # seeds of one setting
        ([{("rung", "a")}, set()], False),  # an older record does not say it
        ([{("small", "a")}, {("large", "b")}], False),  # the models are what is compared
    ],
)
def test_other_weights_under_one_name_are_told(seeds, begun, said):
    first, second = (
        {"ours": value, "by_seed": seeds, "begun": frozenset(pairs)}
        for value, pairs in zip((75.0, 70.0), begun, strict=True)
    )
    one = ours("above", first, second, Side.LAPTOP)
    assert one.text.endswith("; rung had different weights in these runs") is said


def test_the_best_of_some_tells_of_the_weights_of_each():
    rows = [
        row({"rate": rate}, 0.0, ours=60.0, by_seed=scores, begun=frozenset({("rung", digest)}))
        for rate, scores, digest in (
            (1, {1: 60.0, 2: 61.0, 3: 62.0}, "a"),
            (2, {1: 90.0, 2: 45.0, 3: 45.0}, "b"),
            (3, {1: 50.0, 2: 50.0, 3: 50.0}, "a"),
        )
    ]
    found, _ = compare_cells(check("best", {"rate": [1, 2]}), Evidence(*rows))
    (one,) = (one for one in found if one.side is Side.LAPTOP)
    assert "rung had different weights" in one.text


@pytest.mark.parametrize(
    ("kind", "first", "outcome"),
    [
        ("above", 74.0, CLOSE),
        ("above", 76.1, HOLDS),
        ("above", 66.5, CLOSE),
        ("above", 63.9, FAILS),
        ("not_below", 66.5, CLOSE),  # as good cannot be told either
        ("not_below", 76.1, HOLDS),
        ("on_par", 70.0, CLOSE),
        ("on_par", 63.9, FAILS),
    ],
)
def test_shares_of_few_records_tell_little(kind, first, outcome):
    one = ours(kind, {"ours": first}, {"ours": 70.0, "sampling": 3.0}, Side.LAPTOP)
    assert (one.outcome, one.numbers["margin"]) == (outcome, 6.0)


def test_two_shares_have_the_error_of_both():
    one = ours(
        "above", {"ours": 78.0, "sampling": 3.0}, {"ours": 70.0, "sampling": 4.0}, Side.LAPTOP
    )
    assert (one.outcome, one.numbers["margin"]) == (CLOSE, 10.0)


def test_stand_ins_at_the_papers_scale_are_a_trend_among_themselves():
    # The printed deviation would make this too close.
    first = {"printed": 80.0, "std": 5.0, "ours": 70.0, "marks": (Mark.MODEL,)}
    second = {"printed": 85.0, "std": 5.0, "ours": 65.0}
    assert ours("above", first, second, Side.PAPER).outcome is Outcome.LACKING
    trend = ours("above", first, second, Side.STAND_IN)
    assert (trend.outcome, trend.marks) == (HOLDS, "M")


def test_stand_ins_are_not_compared_with_copied_numbers_nor_with_the_text():
    rows = (row(A, 80.0, ours=88.0, marks=(Mark.MODEL,)), row(B, 85.0, source="Somebody 2019"))
    for asked in (check("above", FULL, LORA), check("value", FULL, ends=(88.0, 88.0))):
        (paper,) = compared(asked, *rows, side=Side.PAPER)
        assert paper.outcome is Outcome.LACKING
        assert not compared(asked, *rows, side=Side.STAND_IN)


def test_what_has_not_run_and_what_never_will():
    assert ours("above", {"ours": 88.0}, {}, Side.PAPER).outcome is Outcome.LACKING
    one = ours("above", {}, {"why": "GPT-3 is not public"}, Side.PAPER)
    assert (one.outcome, one.why) == (Outcome.CANNOT, "GPT-3 is not public")


@pytest.mark.parametrize(
    ("more", "ahead"),
    [
        ({}, [10.0, 15.0]),
        ({"free": ["epsilon"]}, [10.0, 5.0, 20.0, 15.0]),
        ({"where": {"epsilon": 8}}, [15.0]),
    ],
)
def test_pairs_agree_in_what_nobody_named(more, ahead):
    numbers = (("full", 3, 60.0), ("full", 8, 70.0), ("LoRA", 3, 50.0), ("LoRA", 8, 55.0))
    rows = [row({"method": method, "epsilon": epsilon}, v) for method, epsilon, v in numbers]
    found = compared(check("above", FULL, LORA, **more), *rows)
    assert [one.numbers["ahead"] for one in found] == ahead


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
    with pytest.raises(PaperError, match=message):
        compared(the_check, row(A, 80.0), row(B, 85.0))


def test_the_best_of_many_equal_ones_is_not_ahead_by_chance():
    """Chosen by the seeds that it is compared with it would be, at every draw alike."""
    ahead = []
    for draw in range(40):
        scores = np.random.default_rng(draw).normal(50, 1, (13, 3))
        rows = [
            row({"rate": rate}, 0.0, ours=fmean(values), by_seed=dict(enumerate(values.tolist())))
            for rate, values in enumerate(scores)
        ]
        found, _ = compare_cells(check("best", {"rate": list(range(12))}), Evidence(*rows))
        (one,) = (one for one in found if one.side is Side.LAPTOP)
        ahead.append(one.numbers["ahead"])
    # The largest of twelve means of three lies 0.94 above the rest, on average.
    assert abs(fmean(ahead)) < 0.35


@pytest.mark.parametrize("known", [{}, {0: 50.0}])
def test_the_best_of_rows_without_common_seeds_has_no_interval(known):
    """Which would be of the very seeds that it was chosen by."""
    three = {0: 50.0, 1: 51.0, 2: 52.0}
    rows = [row({"rate": rate}, 0.0, ours=51.0 + rate, by_seed=three) for rate in (1, 2)]
    rows += [row({"rate": 3}, 0.0, ours=50.0, by_seed=known)]
    found, _ = compare_cells(check("best", {"rate": [1, 3]}), Evidence(*rows))
    (one,) = (one for one in found if one.side is Side.LAPTOP)
    assert one.paired is None
    assert one.numbers["first"] == 52.0


def a_run(name):
    return IndexedRun(Path(name), {}, 0, name)


def test_the_best_at_a_seed_is_chosen_by_the_others():
    rows = [
        row({"rate": 1}, 0.0, ours=61.0, by_seed={1: 60.0, 2: 61.0, 3: 62.0}, runs=(a_run("a"),)),
        row({"rate": 2}, 0.0, ours=60.0, by_seed={1: 90.0, 2: 45.0, 3: 45.0}, runs=(a_run("b"),)),
        row({"rate": 3}, 0.0, ours=50.0, by_seed={1: 50.0, 2: 50.0, 3: 50.0}, runs=(a_run("c"),)),
    ]
    found, _ = compare_cells(check("best", {"rate": [1, 2]}), Evidence(*rows))
    (one,) = (one for one in found if one.side is Side.LAPTOP)
    # Without seed 2, or 3, rate 2 is the better one: 67.5.
    assert one.numbers["first"] == pytest.approx((60 + 45 + 45) / 3)
    assert one.text.startswith("50.0 (1 or 2, by the other seeds) and 50.0 (3)")
    assert one.runs == ("a", "b", "c")
