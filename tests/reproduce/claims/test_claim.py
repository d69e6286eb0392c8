"""Files of claims: what they may hold, and what is refused. The reader is that of tables."""

import math

import pytest

from dpft.reproduce.claims.claim import BenchCheck, FigureCheck, read
from dpft.reproduce.papers import PaperError

SMALL = """
c01:
  says: One is better than the other.
  source: Table 1
  checks:
    - cells: li2022/2
      expect: {points: [0, null]}
      first: {method: full}
      second: {method: [RGP, prefix]}
    - {bench: time, first: [bk], second: [none], ratio: [null, 1.2], models: [gpt2]}
    - figure: li2022/9
      expect: {percent: [-2, null]}
      first: {variant: long}
      second: {variant: short}
      variants: {long: [], short: [optim.epochs=1]}
      scale: laptop
  cannot: [no run has it]
"""


def read_text(tmp_path, text):
    path = tmp_path / "nobody2020.yaml"
    path.write_text(text)
    return read(path)


def test_a_small_file(tmp_path):
    (one,) = read_text(tmp_path, SMALL)
    cells, bench, variants = one.checks
    assert (one.name, one.cannot) == ("nobody2020/c01", ("no run has it",))
    assert (cells.second, cells.scale) == ({"method": ("RGP", "prefix")}, None)
    assert (cells.bounds(50.0), cells.in_words) == ((0.0, math.inf), "difference at least 0")
    assert isinstance(bench, BenchCheck)
    assert isinstance(variants, FigureCheck)
    assert (variants.bounds(-50.0), variants.scale) == ((-1.0, math.inf), "laptop")


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("{points: [0, null]}", "{point: [0, null]}", "checks.0.cells.expect"),
        ("{points: [0, null]}", "{points: [0, null], percent: [0, 1]}", "checks.0.cells.expect"),
        ("- cells: li2022/2", "- table: li2022/2", "checks.0"),
        ("ratio: [null, 1.2]", "ratio: [2, 1]", "checks.1.bench.ratio"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, old, new, place):
    assert SMALL.count(old) == 1
    with pytest.raises(PaperError, match=rf"nobody2020\.yaml: c01\.{place}"):
        read_text(tmp_path, SMALL.replace(old, new))
