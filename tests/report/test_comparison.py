"""Tables come from records and say what the records say."""

from pathlib import Path

import pytest

from dpft.privacy.guarantee import APPROXIMATION
from dpft.report.comparison import row, show
from tests.report.test_card import CONSTANT
from tests.runs.example import example_guarantee, without_privacy

PRIVATE = {
    "config": {"clip": {"plan": "ghost", "groups": "flat"}, "decode": {"split": "test"}},
    "training": {"steps": 410, "seconds": 61.4},
    "scores": {"test": {"metrics": {"BLEU": 0.61234, "NIST": None}, "examples": 630}},
    "privacy": example_guarantee(
        epsilon={"rdp": 2.9991, "gdp_clt": 2.32, "prv": {"estimate": 2.66, "upper": 2.6801}},
        warnings=["run with shuffled batches"],
        caveats=["few records"],
    ),
    "flags": [{"flag": "bundled_model", "name": "tiny"}],
}
PLAIN = {**PRIVATE, "privacy": without_privacy()}


def shown(capsys, *runs):
    show(runs)
    return " ".join(capsys.readouterr().out.split())


def test_bounds_are_rounded_to_the_safe_side():
    """Upper bounds up, of PRV the upper one of its three, and an audit's lower bound down."""
    cells = row(Path("runs/a"), {**PRIVATE, "audit": {"epsilon_lower": 1.2999}})
    assert (cells["BLEU"], cells["NIST"], cells["instances"]) == ("0.6123", "-", "630")
    assert (cells["eps RDP"], cells["eps PRV"], cells["eps GDP-CLT"]) == ("3.000", "2.681", "2.320")
    assert cells["eps at least (audit)"] == "1.299"
    assert row(Path("a"), PLAIN)["eps RDP"] == "none"
    privacy = {**PRIVATE["privacy"], "epsilon": {"rdp": 5.2e7, "gdp_clt": None, "prv": None}}
    cells = row(Path("a"), {**PRIVATE, "privacy": privacy})
    assert (cells["eps RDP"], cells["eps PRV"], cells["eps GDP-CLT"]) == ("5.20e+07", "-", "-")


def test_labels_warnings_and_caveats_are_never_left_out(capsys):
    text = shown(capsys, (Path("runs/a"), PRIVATE), (Path("runs/b"), PLAIN))
    for said in (
        "bundled tiny model",
        "shuffled batches",
        "few records",
        "no privacy guarantee",
        "(3, 8e-06)",
        APPROXIMATION,
    ):
        assert said in text
    assert APPROXIMATION not in shown(capsys, (Path("runs/b"), PLAIN))


@pytest.mark.parametrize("width", [60, 81, 123])
def test_no_figure_loses_digits_where_many_runs_are_compared(capsys, monkeypatch, width):
    """Runs of different tasks, whose columns need different widths."""
    monkeypatch.setenv("COLUMNS", str(width))
    other = {**PRIVATE, "scores": {"test": {**CONSTANT, "metrics": {"perplexity": 41441.2503}}}}
    show([(Path(f"runs/lora-rank4-bk-eps{n}-s{n}"), (PRIVATE, other)[n % 2]) for n in range(6)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    cells = [cell for line in lines if line.startswith("  ") for cell in line.split()]
    assert cells.count("0.6123") == cells.count("41441.2503") == 3
    assert not any("…" in line for line in lines)
