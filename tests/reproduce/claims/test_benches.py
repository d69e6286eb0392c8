"""Ratios out of files of dpft bench."""

import json

import pytest

from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.claims.claim import BenchCheck, Claim
from dpft.reproduce.claims.evaluate import Evidence, evaluate
from dpft.reproduce.claims.rule import Word
from dpft.reproduce.tables.record_index import Index


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
