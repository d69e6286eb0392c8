"""The README's chart of scores against epsilon is that of the committed records."""

from pathlib import Path

from scripts.utility_figure import ROOT, csv, points


def test_the_committed_numbers_are_those_of_the_records():
    drawn = points()
    assert csv(drawn) == Path(ROOT / "results/figures/utility.csv").read_text()
    assert all(any(p.epsilon is None for p in panel) for panel in drawn)
    assert [p.epsilon for p in drawn[0]][:2] == sorted(p.epsilon for p in drawn[0][:2])
