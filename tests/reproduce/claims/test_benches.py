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


def compared(folder, check, summary=(), *, model="gpt2", device="cpu", **sections):
    """The comparisons and commands of a file with this content."""
    settings = {"model": model, "length": 100, "batch": 4, "device": device}
    content = {"settings": settings, "labels": [model, "B=4"], "summary": summary, **sections}
    (folder / "a.json").write_text(json.dumps(content))
    claim = Claim("demo", "c01", "It is fast.", "Figure 1", (check,))
    result = evaluate(claim, Evidence(Index(), read_benches([folder])[0]))
    return result.ours, result.commands


def check(first, second, low=None, high=None, quantity="time", tokens=0):
    words = (quantity, first.split(), second.split(), (low, high), ("gpt2",), "dpft bench", tokens)
    return BenchCheck(*words)


def times(rounds=7, name="time_ratio", **styles):
    return [{"label": label, "rounds": rounds, name: ratio} for label, ratio in styles.items()]


@pytest.mark.parametrize(
    ("high", "word"),
    [(1.2, Word.HOLDS), (1.05, Word.INCONCLUSIVE), (0.8, Word.FAILS)],
)
def test_time_relative_to_non_private(tmp_path, high, word):
    summary = times(none=spread(1.0), bk=spread(1.01, 0.89, 1.11))
    (one,), commands = compared(tmp_path, check("bk", "none", high=high), summary)
    assert one.word is word
    assert (one.settings, one.runs, commands) == (("gpt2 on cpu",), ("a.json",), [])


def test_what_does_not_count_gives_no_number(tmp_path):
    good, few = (times(n, none=spread(1.0), bk=spread(1.1)) for n in (3, 2))
    peers = {"none (untied)": spread(1.0), "opacus (untied)": spread(4.0)}
    cases = [
        (check("bk", "none", low=1), good, {}, True),
        (check("bk", "none", low=1), few, {}, False),  # fewer than three rounds
        (check("bk", "none", low=1), good, {"model": "tiny"}, False),
        (check("bk", "none", low=1, tokens=512), good, {}, False),
        (check("opacus", "bk", low=1), good + times(**peers), {}, False),  # tied and untied
        (check("opacus", "none", low=1), good + times(**peers), {}, True),
    ]
    for asked, summary, more, known in cases:
        (one,), commands = compared(tmp_path, asked, summary, **more)
        assert (bool(one.text), commands) == (known, [] if known else ["dpft bench"])


@pytest.mark.parametrize(
    ("device", "word", "commands"),
    [("cpu", Word.NOT_YET, ["dpft bench --device cuda"]), ("cuda", Word.FAILS, [])],
)
def test_memory_is_measured_on_a_gpu(tmp_path, device, word, commands):
    summary = times(name="memory_ratio", none=spread(1.0), bk=spread(1.08))
    asked = check("bk", "none", low=1.2, high=1.4, quantity="memory")
    (one,), typed = compared(tmp_path, asked, summary, device=device)
    assert (one.word, typed) == (word, commands)
