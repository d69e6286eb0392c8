"""Claims of the papers as data, and ``dpft claims`` as it is typed, in a folder without results."""

import math
from collections import Counter

import pytest

from dpft.reproduce.claims import claim
from dpft.reproduce.claims.claim import BenchCheck, FigureCheck, load
from tests.reproduce.papers.test_schema import refused, written
from tests.reproduce.test_commands import _elsewhere, invoke  # noqa: F401

CLAIM = """
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


def test_a_small_claim(tmp_path):
    (one,) = claim.read(written(tmp_path, CLAIM))
    cells, bench, variants = one.checks
    assert (one.name, one.cannot) == ("1/c01", ("no run has it",))
    assert (cells.second, cells.scale) == ({"method": ("RGP", "prefix")}, None)
    assert (cells.bounds(50.0), cells.in_words) == ((0.0, math.inf), "difference at least 0")
    assert isinstance(bench, BenchCheck)
    assert isinstance(variants, FigureCheck)
    assert (variants.bounds(-50.0), variants.scale) == ((-1.0, math.inf), "laptop")


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("{points: [0, null]}", "{point: [0, null]}", "c01.checks.0.cells.expect"),
        (
            "{points: [0, null]}",
            "{points: [0, null], percent: [0, 1]}",
            "c01.checks.0.cells.expect",
        ),
        ("- cells: li2022/2", "- table: li2022/2", "c01.checks.0"),
        ("ratio: [null, 1.2]", "ratio: [2, 1]", "c01.checks.1.bench.ratio"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, old, new, place):
    refused(claim.read, tmp_path, CLAIM, old, new, place)


def test_claims_without_any_record_and_with_a_damaged_benchmark(tmp_path):
    text = " ".join(invoke("claims", "he2022").stdout.split())
    assert "he2022/c13" in text
    assert "scale=laptop --seeds 0,1,2,3,4 --run" in text
    (tmp_path / "broken.json").write_text("{")
    result = invoke("claims", "bu2023/c12", "--bench", ".")
    assert "By ours: holds, computed: 2 of 2 hold" in " ".join(result.stdout.split())
    assert "broken.json" in result.stderr
    assert "difference 3" in " ".join(invoke("claims", "li2022/c02").stdout.split())


def test_a_summary_counts_the_words_of_each_papers_claims():
    lines = invoke("claims", "--summary").stdout.splitlines()
    *_, first, second, third = lines[1].split()
    counts = [[int(n) for n in line.split()[-3:]] for line in lines[3:] if line.strip()]
    found = dict(zip((first, second, third), map(sum, zip(*counts, strict=True)), strict=True))
    assert found == Counter(claim.name.partition("/")[0] for claim in load())
