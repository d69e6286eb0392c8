"""Predicted hours of claims at the paper's scale."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.training.devices import device

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("paper_cost", SCRIPTS / "paper_cost.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPTS))


def settings(*words):
    return parse(compose(words))


def test_hours_grow_with_steps_and_equal_steps_are_simulated_once(script):
    hours = script.Hours(device("h100-sxm"))
    words = ("task=e2e", "model=tiny", "clip=bk", "eps=3", "optim.batch_size=1024")
    one, three = (hours(settings(*words, f"optim.epochs={n}")) for n in (1, 3))
    assert three == pytest.approx(3 * one)
    assert hours(settings(*words, "optim.epochs=1", "eps=8")) == one
    assert len(hours._costs) == 1
    assert hours(settings(*words, "optim.epochs=1", "adapt=lora")) != one
    assert len(hours._costs) == 2


def test_what_cannot_be_simulated_has_no_hours(script):
    hours = script.Hours(device("h100-sxm"))
    assert hours(settings("task=e2e", "model=tiny", "adapt=prefix", "optim.epochs=1")) is None
    assert hours(settings("task=sst2", "model=bert-base", "optim.epochs=1")) is None


def test_a_line_counts_three_seeds_and_what_is_not_predicted(script):
    """Two settings of three; the third's step cannot be simulated."""
    (claim,) = script.claims.load("li2022/c10")
    one = script.Priced(claim, lambda run: {"sgd": 2.0, "adam": 1.0}[run.optim.name])
    assert [run.model.name for run in one.runs] == ["gpt2", "gpt2"]
    assert one.row == ("`li2022/c10`", 2, "-", "2.0", "9")
    one.runs.append(replace(one.runs[0], seed=7))
    del one.hours
    one._hours = lambda run: None if run.seed == 7 else 2.0
    assert one.row == ("`li2022/c10`", 3, 1, "2.0", "12")
    one._hours = lambda run: None
    del one.hours
    assert one.row == ("`li2022/c10`", 3, 3, "-", "-")


def test_the_total_is_of_three_seeds_of_all_claims(script):
    (claim,) = script.claims.load("li2022/c10")
    one, other = (script.Priced(claim, lambda run, hours=h: hours) for h in (2.0, 5.0))
    hours = SimpleNamespace(device=device("h100-sxm"), precision="float32")
    (total,) = (x for x in script.table([one, other], hours).splitlines() if x.startswith("| all"))
    assert total.split("|")[-2].strip() == f"{3 * (2 * 2 + 2 * 5)}"


def test_the_page_has_the_assumptions_with_the_table(script):
    page = (SCRIPTS.parent / "docs/explanation/evidence.md").read_text(encoding="utf-8")
    _, table, _ = (part.strip() for part in script.split(page))
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert "**Predicted, not measured**, for one NVIDIA H100" in table
    assert "reading data, decoding, checkpoints and the host's waits are not counted" in table
