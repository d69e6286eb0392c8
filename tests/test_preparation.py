"""What is said before a run trains."""

import pytest

from dpft.objectives.base import cut_in_encoding
from dpft.objectives.causal import CausalExample
from dpft.preparation import tell
from dpft.progress import Progress

EXAMPLES = [
    CausalExample((1,), (2,), cut_source=3, cut_target=1),
    CausalExample((1,), (2,), cut_target=5),
    CausalExample((1,), (2,)),
]


def said(examples, noised, terminal, capsys):
    progress = Progress()
    progress.console._force_terminal = terminal
    tell([cut_in_encoding(examples)], noised, progress)
    return " ".join(capsys.readouterr().err.split())


def test_who_trains_is_told_how_many_records_were_cut(capsys):
    told = said(EXAMPLES, False, False, capsys)
    assert "of 3 training records, 1 lost a part of their source and 2 the end" in told
    assert said(EXAMPLES[2:], False, False, capsys) == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_how_long_private_records_are_stays_on_the_terminal(terminal, capsys):
    assert bool(said(EXAMPLES, True, terminal, capsys)) is terminal
