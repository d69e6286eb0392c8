"""The strict reader of claims."""

import textwrap

import pytest

from dpft.reproduce.claims.reader import read
from dpft.reproduce.claims.schema import (
    BenchCheck,
    CellsCheck,
    ClaimError,
    Untestable,
    VariantsCheck,
)

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
    - variants_of: li2022/2
      row: {model: GPT-2}
      column: bleu
      expect: {apart: [1, null]}
      variants: {long: [], short: [optim.epochs=1]}
      pairs: [[long, short]]
    - cannot: nobody has it
"""


def written(tmp_path, text):
    path = tmp_path / "nobody2020.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_small_file(tmp_path):
    one, two = read(written(tmp_path, SMALL))
    assert (one.name, two.name) == ("nobody2020/c01", "nobody2020/c02")
    cells, bench = one.checks
    assert isinstance(cells, CellsCheck)
    assert cells.second == {"method": ("RGP", "prefix")}
    assert (cells.printed, cells.ours, cells.figure) == (True, True, False)
    assert isinstance(bench, BenchCheck)
    assert (bench.low, bench.high) == (None, 1.2)
    variants, cannot = two.checks
    assert isinstance(variants, VariantsCheck)
    assert (variants.expected.kind, variants.expected.low) == ("apart", 1.0)
    assert cannot == Untestable("nobody has it")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("c01:", "first:", "a claim 'first'; expected a number such as c01"),
        ("c02:", "c01:", "given twice"),
        ("  source: Table 1\n", "", "c01 lacks 'source'"),
        ("says: One", "claims: One", "c01 lacks 'says'"),
        ("expect: above", "expect: abov", "c01, check 1, expect is 'abov'"),
        ("- cells: li2022/2", "- table: li2022/2", "check 1 has none of cells, figure"),
        ("where: {epsilon: 3}", "were: {epsilon: 3}", "unknown key 'were'.*'where'"),
        ("      second: {method: [RGP, prefix]}\n", "", "check 1 expects above and has no second"),
        ("where: {epsilon: 3}", "where: {epsilon: 3", "nobody2020.yaml is not YAML"),
        ("where: {epsilon: 3}", "printed: 1", "printed is 1; expected true or false"),
        ("bench: time", "bench: tme", "bench is 'tme'; did you mean 'time'"),
        ("ratio: [null, 1.2]", "ratio: [2, 1]", "expected the lower end first"),
        ("ratio: [null, 1.2]", "ratio: [1]", r"expected \[low, high\]"),
        ("pairs: [[long, short]]", "pairs: [[long, shrt]]", "no variant is 'shrt'.*'short'"),
        ("{apart: [1, null]}", "{value: 3}", "c02, check 1 expects value; expected above"),
        ("- cannot: nobody has it", "- computed: magic", "computed is 'magic'"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, said):
    assert SMALL.count(old) == 1
    with pytest.raises(ClaimError, match=said):
        read(written(tmp_path, SMALL.replace(old, new)))


def test_an_empty_file_is_an_error(tmp_path):
    with pytest.raises(ClaimError, match="expected"):
        read(written(tmp_path, "{}"))
