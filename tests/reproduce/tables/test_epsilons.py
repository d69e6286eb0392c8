"""Printed epsilons next to those of our accountants."""

import pytest

from dpft.reproduce import papers
from dpft.reproduce.tables.cells import epsilons
from tests.reproduce.tables.example import table


def load(name):
    return papers.load(*name.split("/", 1))


def test_epsilons_follow_from_the_papers_settings():
    rows = epsilons(table(), table().rows)
    assert [len(row) for row in rows] == [2, 0, 0, 0, 0]
    by_name = {cell.accountant: cell for cell in rows[0]}
    # E2E, batches of 1024, ten epochs, epsilon 3: docs/reference/accounting.md, and Li et al.
    # 2022, Table 7.
    assert by_name["gdp_clt"].ours == pytest.approx(2.32, abs=0.02)
    assert by_name["gdp_clt"].columns == ()  # one number for the row
    assert not by_name["gdp_clt"].within
    assert by_name["prv"].ours == pytest.approx(2.66, abs=0.02)
    assert by_name["prv"].columns == ("BLEU",)  # printed for this column alone


PRINTED = [name for name in papers.names() if any(row.epsilons for row in load(name).rows)]


@pytest.mark.parametrize("name", PRINTED)
def test_a_table_whose_epsilons_do_not_come_out_says_why(name):
    cells = [cell for row in epsilons(load(name), load(name).rows) for cell in row]
    assert all(cell.within for cell in cells) is (load(name).unequal is None)
