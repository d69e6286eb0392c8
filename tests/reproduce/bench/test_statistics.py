"""Ratios are formed within rounds, and every variant takes every place."""

import pytest

from dpft.reproduce.bench import summarise
from dpft.reproduce.bench.statistics import Spread, rotated

from .fakes import REFUSED, result, settings


def row(turn, variant, outcome):
    return {"round": turn, "variant": variant, "result": outcome}


def test_every_variant_takes_every_place():
    orders = [rotated("abc", turn) for turn in range(3)]
    assert ["".join(order) for order in orders] == ["abc", "bca", "cab"]
    assert rotated("abc", 3) == list("abc")
    assert rotated("", 3) == []


def test_ratios_are_of_the_same_round():
    """A machine that is twice as slow in one round changes no ratio."""
    rows = [
        *(row(0, "none", result(1.0, 100)), row(0, "bk", result(1.5, 110))),
        *(row(1, "none", result(2.0, 100)), row(1, "bk", result(3.0, 120))),
        *(row(2, "none", result(1.0, 200)), row(2, "bk", result(1.2, 220))),
    ]
    none, bk = summarise(settings(), rows)
    assert none.time_ratio == Spread(1.0, 1.0, 1.0)
    assert bk.time_ratio == Spread(1.5, 1.2, 1.5)
    assert bk.memory_ratio == Spread(1.1, 1.1, 1.2)
    assert bk.seconds == Spread(1.5, 1.2, 3.0)
    assert (bk.rounds, bk.baseline, bk.message) == (3, "none", None)


def test_a_step_is_divided_by_the_two_around_it():
    """A machine that becomes slower in the middle of a round changes no ratio."""
    bk = result() | {"seconds": [1.5, 3.0, 6.0], "beside": [1.0, 1.0, 3.0, 5.0]}
    rows = [row(0, "none", result(9.0)), row(0, "bk", bk)]
    assert summarise(settings(), rows)[1].time_ratio == Spread(1.5, 1.5, 1.5)


def test_peers_are_divided_by_the_untied_baseline():
    rows = [
        row(0, "none", result(1.0)),
        row(0, "bk", result(1.0)),
        row(0, "none (untied)", result(2.0)),
        row(0, "opacus (untied)", result(5.0)),
    ]
    peer = summarise(settings(peers="opacus"), rows)[-1]
    assert peer.peer
    assert peer.time_ratio is not None
    assert peer.time_ratio.median == pytest.approx(2.5)


def test_failures_are_kept_with_their_message():
    rows = [
        *(row(0, "none", result()), row(0, "bk", REFUSED)),
        *(row(1, "none", {"status": "died", "message": "signal 9"}), row(1, "bk", result())),
        *(row(2, "none", result()), row(2, "bk", result(2.0))),
    ]
    none, bk = summarise(settings(), rows)
    assert bk.rounds == 1
    assert bk.message == REFUSED["message"]
    assert bk.time_ratio == Spread(2.0, 2.0, 2.0)
    assert (none.rounds, none.message) == (2, "signal 9")


def test_what_was_never_measured_has_no_ratio():
    none, bk = summarise(settings(), [row(0, "none", result()), row(0, "bk", REFUSED)])
    assert none.time_ratio is not None
    assert (bk.seconds, bk.time_ratio, bk.peak_bytes, bk.gradient_norm) == (None,) * 4
