"""From cells and records to comparisons and words."""

import json
import math
from statistics import fmean

import numpy as np
import pytest

from dpft.reproduce import papers
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.claims.claim import BenchCheck, CellsCheck, Claim
from dpft.reproduce.claims.evaluate import Evidence, evaluate
from dpft.reproduce.claims.rule import Word
from dpft.reproduce.claims.show import sentence
from dpft.reproduce.tables.planned import merged, planned, words_at
from dpft.reproduce.tables.record_index import Answers, Index, make_index
from dpft.reproduce.tables.verdicts import Mark
from tests.reproduce.claims.example import judged, row
from tests.reproduce.tables.example import PAPERS, plan, run_of, table, write_record

A, B = {"method": "full"}, {"method": "LoRA"}
ABOVE, NOT_WORSE = {"points": (0, None)}, {"percent": (-2, None)}


def printed(expected, first, second, *, std=None, **table):
    rows = (row(A, first, std=std), row(B, second, std=std))
    return judged(expected, *rows, first=A, second=B, scale="printed", **table).by_print


@pytest.mark.parametrize(
    ("expected", "first", "word"),
    [
        (ABOVE, 86.0, Word.CONSISTENT),
        (ABOVE, 85.0, Word.INCONCLUSIVE),
        (ABOVE, 84.0, Word.NOT_CONSISTENT),
        (NOT_WORSE, 83.5, Word.CONSISTENT),  # 2% of 85 are 1.7
        (NOT_WORSE, 83.1, Word.NOT_CONSISTENT),
        ({"percent": (-2, 2)}, 87.5, Word.NOT_CONSISTENT),
        ({"points": (1, 3)}, 87.0, Word.CONSISTENT),
        ({"points": (1, 2)}, 87.0, Word.INCONCLUSIVE),  # at the end
    ],
)
def test_printed_numbers(expected, first, word):
    assert printed(expected, first, 85.0) is word
    lower = printed(expected, -first, -85.0, higher=False)
    assert lower is word


def test_a_value_and_printed_deviations():
    value = {"value": (None, 17.51)}
    for number, word in ((16.79, Word.CONSISTENT), (17.6, Word.NOT_CONSISTENT)):
        rows = (row(A, number),)
        assert judged(value, *rows, first=A, scale="printed", higher=False).by_print is word
    # 0.9 sqrt(2/3) is the error of the difference of means of three: 4.303 times that is 3.2.
    assert printed(ABOVE, 88.0, 85.0, std=0.9, seeds=3) is Word.INCONCLUSIVE
    assert printed(ABOVE, 89.0, 85.0, std=0.9, seeds=3) is Word.CONSISTENT


def ours(expected, first, second, scale="laptop"):
    rows = (row(A, **{"printed": 0.0} | first), row(B, **{"printed": 0.0} | second))
    (one,) = judged(expected, *rows, first=A, second=B, scale=scale).ours
    return one


def seeds(*values, **more):
    return {"ours": fmean(values), "by_seed": dict(enumerate(values))} | more


def test_runs_are_paired_by_seed():
    one = ours(ABOVE, seeds(61.9, 52.0, 72.1), seeds(60.0, 50.0, 70.0))
    assert (one.word, one.seeds) == (Word.TENDS_TO_HOLD, 3)
    assert "+2.0, 95% interval +1.8 to +2.2 over 3 seeds" in one.text
    five = ours(ABOVE, seeds(61.9, 52.0, 72.1, 3.0, 4.1), seeds(60.0, 50.0, 70.0, 1.0, 2.0))
    assert five.word is Word.CONFIRMED
    assert ours(ABOVE, seeds(61.0), seeds(60.0)).word is Word.CONSISTENT
    # Only seeds that both have count.
    assert ours(ABOVE, seeds(61.0, 30.0), seeds(60.0)).test[0].mean == 1.0
    # Shares of a small test set: 1.5 points of error each.
    assert ours(ABOVE, seeds(61.0, sampling=1.5), seeds(60.0)).word is Word.INCONCLUSIVE


def test_a_number_that_the_paper_copied_is_no_run():
    one = ours(ABOVE, {"ours": 88.0}, {"printed": 85.0, "source": "Somebody 2019"}, "paper")
    assert (one.word, one.why) == (Word.CANNOT, "LoRA is copied from Somebody 2019")


def test_settings_that_learned_nothing_show_nothing():
    idle = seeds(51.0, 51.1, 51.2, marks=(Mark.CONSTANT,))
    for first, second in ((seeds(80.0, 80.1, 80.2), idle), (idle, seeds(80.0, 80.1, 80.2))):
        one = ours(ABOVE, first, second)
        assert one.word is Word.INCONCLUSIVE
        assert "learned nothing" in one.text


def right(*wrong, references="d"):
    return Answers(references, tuple(number not in wrong for number in range(400)))


def test_answers_to_the_same_records_count_instead_of_shares_of_them():
    """Of 400 records one setting errs on 40, the other on the same and eight more."""

    def side(answers):
        values = [100 * float(np.mean(one.right)) for one in answers]
        sampling = 100 * math.sqrt(0.9 * 0.1 / 400)
        return seeds(*values, answers=dict(enumerate(answers)), sampling=sampling)

    def compared(first, second):
        rows = (row(A, 0.0, **side(first)), row(B, 0.0, **side(second)))
        result = judged(ABOVE, *rows, first=A, second=B, scale="laptop", factor=100.0)
        return result.ours[0].test[0].error

    many, few = [right(*range(48))] * 2, [right(*range(40))] * 2
    paired = 100 * math.sqrt(8 - 400 * (8 / 400) ** 2 + 1) / 400
    assert compared(few, many) == pytest.approx(paired)
    two_shares = pytest.approx(1.5 * math.sqrt(2))
    assert compared([right(*range(40), references="e"), few[1]], many) == two_shares


def test_the_best_at_a_seed_is_chosen_by_the_others():
    by_seed = [(60.0, 61.0, 62.0), (90.0, 45.0, 45.0), (50.0, 50.0, 50.0)]
    rows = [row({"rate": rate}, 0.0, **seeds(*scores)) for rate, scores in enumerate(by_seed)]
    (one,) = judged(ABOVE, *rows, first={"rate": [0, 1]}, scale="laptop").ours
    # Without seed 1, or 2, the second is the better one: 67.5.
    assert one.test[0].mean == pytest.approx((60 + 45 + 45) / 3 - 50)


def on_demo(first, second, **more):
    columns = ("bleu",)
    check = CellsCheck("demo/1", ABOVE, first=first, second=second, columns=columns, **more)
    return Claim("demo", "c01", "Privacy costs.", "Table 1", (check,))


@pytest.fixture
def evaluated(monkeypatch, tmp_path):
    monkeypatch.setattr(papers, "ROOT", PAPERS)

    return lambda claim: evaluate(claim, Evidence(make_index([tmp_path]), []))


def record(folder, scale, epsilon, bleu):
    run = run_of(plan(scale), "full", epsilon)
    write_record(folder / f"{scale}-{epsilon}", run, 0, {"BLEU": bleu})


def test_runs_at_the_papers_scale_come_first(evaluated, tmp_path):
    both = {"method": ("full",), "epsilon": ("none",)}, {"method": ("full",), "epsilon": (3,)}
    nothing = evaluated(on_demo(*both))
    assert (nothing.by_us, nothing.by_print) == (Word.NOT_YET, Word.CONSISTENT)  # 69 and 60
    laptop = "dpft table demo/1 scale=laptop --seeds 0,1,2,3,4 --run"
    assert nothing.commands == [laptop]
    record(tmp_path, "laptop", 3, 0.30)
    record(tmp_path, "laptop", "none", 0.20)
    trend = evaluated(on_demo(*both))
    text = "not consistent with tiny on e2e (42,061 records), 1 seed: 0 of 1 hold"
    assert sentence(trend.ours) == text
    assert trend.commands == [laptop]
    record(tmp_path, "paper", 3, 0.60)
    record(tmp_path, "paper", "none", 0.70)
    whole = evaluated(on_demo(*both))
    assert sentence(whole.ours) == "consistent, 1 seed: 1 of 1 hold"
    assert whole.commands == [laptop.replace("laptop", "paper")]


def test_variants_of_a_row(evaluated, tmp_path):
    one = table()
    long, short = (), ("optim.epochs=1",)
    for words, bleu, seed in ((long, 0.60, 0), (long, 0.62, 1), (short, 0.40, 0)):
        asked = merged(words_at(one, one.columns[0], one.rows[0], "laptop"), words)
        run = planned(asked, "test")
        write_record(tmp_path / f"{len(words)}-{seed}", run, seed, {"BLEU": bleu})
    where = {"method": ("full",), "epsilon": (3,)}
    both = {"variant": ("long",)}, {"variant": ("short",)}
    claim = on_demo(*both, where=where, variants={"long": long, "short": short})
    found = evaluated(claim)
    (compared,) = found.ours
    assert (compared.word, len(compared.runs)) == (Word.CONSISTENT, 3)
    assert len(found.commands) == 7  # of ten runs
    assert all(command.startswith("dpft train task=e2e") for command in found.commands)


def spread(median, low=None, high=None):
    return {"median": median, "min": low or median, "max": high or median}


def times(rounds=7, name="time_ratio", **styles):
    return [{"label": label, "rounds": rounds, name: ratio} for label, ratio in styles.items()]


def compared(folder, summary, ratio, *, first="bk", quantity="time", tokens=0, device="cpu"):
    """The only comparison of a file with this summary, and the commands."""
    settings = {"model": "gpt2", "length": 100, "batch": 4, "device": device}
    content = {"settings": settings, "labels": ["gpt2", "B=4"], "summary": summary}
    (folder / "a.json").write_text(json.dumps(content))
    check = BenchCheck(quantity, (first,), ("none",), ratio, ("gpt2",), "dpft bench", tokens)
    claim = Claim("demo", "c01", "It is fast.", "Figure 1", (check,))
    result = evaluate(claim, Evidence(Index(), read_benches([folder])[0]))
    (one,) = result.ours
    return one, result.commands


@pytest.mark.parametrize(
    ("high", "word"), [(1.2, Word.HOLDS), (1.05, Word.INCONCLUSIVE), (0.8, Word.FAILS)]
)
def test_the_rounds_decide(tmp_path, high, word):
    summary = times(none=spread(1.0), bk=spread(1.01, 0.89, 1.11))
    one, commands = compared(tmp_path, summary, (None, high))
    assert (one.word, one.settings, commands) == (word, ("gpt2 on cpu",), [])


def test_what_does_not_count_gives_no_number(tmp_path):
    good, few = (times(n, none=spread(1.0), bk=spread(1.1)) for n in (3, 2))
    cases = [
        (good, {}, True),
        (few, {}, False),  # fewer than three rounds
        (good, {"tokens": 512}, False),
    ]
    for summary, asked, known in cases:
        one, commands = compared(tmp_path, summary, (1.0, None), **asked)
        assert (bool(one.text), commands) == (known, [] if known else ["dpft bench"])


def test_memory_is_measured_on_a_gpu(tmp_path):
    summary = times(name="memory_ratio", none=spread(1.0), bk=spread(1.08))
    for device, word, commands in (
        ("cpu", Word.NOT_YET, ["dpft bench --device cuda"]),
        ("cuda", Word.FAILS, []),
    ):
        one, typed = compared(tmp_path, summary, (1.2, 1.4), quantity="memory", device=device)
        assert (one.word, typed) == (word, commands)
