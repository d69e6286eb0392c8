"""Files of claims: what they may hold, and what is refused. The reader is that of tables."""

import pytest

from dpft.reproduce.claims.schema import BenchCheck, CellsCheck, FigureCheck, Untestable, read
from dpft.reproduce.papers import PaperError

SMALL = """
c01:
  says: One is better than the other.
  source: Table 1
  checks:
    - cells: li2022/2
      expect: above
      first: {method: full}
      second: {method: [RGP, prefix]}
      where: {epsilon: 3}
    - bench: time
      first: [bk]
      second: [none]
      ratio: [null, 1.2]
      models: [gpt2]
      command: dpft bench --model gpt2
c02:
  says: Another thing.
  source: Section 2
  reading: As we read it.
  checks:
    - figure: li2022/9
      expect: {apart: [1, null]}
      first: {variant: long}
      second: {variant: short}
      variants: {long: [], short: [optim.epochs=1]}
      scales: [laptop]
    - cannot: nobody has it
"""


def read_text(tmp_path, text):
    path = tmp_path / "nobody2020.yaml"
    path.write_text(text)
    return read(path)


def test_a_small_file(tmp_path):
    one, two = read_text(tmp_path, SMALL)
    assert (one.name, two.name) == ("nobody2020/c01", "nobody2020/c02")
    cells, bench = one.checks
    assert isinstance(cells, CellsCheck)
    assert cells.second == {"method": ("RGP", "prefix")}
    assert (cells.printed, cells.ours, isinstance(cells, FigureCheck)) == (True, True, False)
    assert isinstance(bench, BenchCheck)
    assert bench.ratio == (None, 1.2)
    variants, cannot = two.checks
    assert isinstance(variants, FigureCheck)
    assert (variants.printed, variants.scales) == (False, ("laptop",))
    assert (variants.expected.kind, variants.expected.low) == ("apart", 1.0)
    assert cannot == Untestable("nobody has it")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("c02:", "second:", "second, number is 'second'; .*pattern"),
        ("expect: above", "expect: abov", "c01, check 1, cells, expect, kind is 'abov'"),
        ("- cells: li2022/2", "- table: li2022/2", "c01, check 1 .*one of the keys cells, figure"),
        ("where: {epsilon: 3}", "were: {epsilon: 3}", "unknown key 'were'; did you mean 'where'"),
        ("      second: {method: [RGP, prefix]}\n", "", "expects above and has no second"),
        ("expect: above", "expect: best", "check 1, cells expects best and has a second"),
        ("where: {epsilon: 3}", "where: {epsilon: []}", "where, epsilon is .*at least 1 item"),
        ("ratio: [null, 1.2]", "ratio: [2, 1]", r"ratio is \[2.0, 1.0\]; expected \[low, high\]"),
        ("{apart: [1, null]}", "apart", "expect is apart; expected numbers"),
        ("- cannot: nobody has it", "- computed: magic", "computed is 'magic'"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, old, new, message):
    assert SMALL.count(old) == 1
    with pytest.raises(PaperError, match=rf"(?s)nobody2020\.yaml.*({message})"):
        read_text(tmp_path, SMALL.replace(old, new))
