"""The examples of docs/reference/metrics.md."""

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/metrics.md"


def test_the_examples_of_the_page_are_what_is_computed():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert failed == 0  # the report is on standard output
    assert tried >= 15
