"""The page of results, which the committed records decide."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpft.reproduce.tables.record_index import make_index
from tests.reproduce.tables.example import write_record

FILE = Path(__file__).parents[2] / "scripts" / "evidence_figure.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("evidence_figure", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence_figure"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_of_the_committed_records(script):
    page = (FILE.parents[1] / "results" / "README.md").read_text(encoding="utf-8")
    index = script.committed()
    again = script.written(page, script.results(index), index)
    assert again == page, "type python scripts/evidence_figure.py"


def test_a_line_has_the_interval_its_seeds_and_what_they_cost(script, tmp_path, monkeypatch):
    (claim,) = script.claims.load("li2022/c10")
    for number, need in enumerate(script.evidence.needs(claim)):
        for seed in (1, 2, 3):
            path = tmp_path / f"{number}-{seed}"
            score = 0.5 + 0.01 * (2 * number - 1) * seed
            write_record(path, need.planned, seed, {"BLEU": score})
    monkeypatch.setattr(script.claims, "load", lambda: [claim])
    monkeypatch.setattr(script, "hours", lambda records: len(records) / 2)
    index = make_index([tmp_path])
    (line,) = script.table(script.results(index), index).splitlines()[2:]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[0].startswith("`li2022/c10` On E2E")
    # By seed 2, 4 and 6 points apart: 4.303 times 2 over the root of 3 is 4.968.
    assert "-4.000, 95% interval -8.968 to +0.968 over 3 seeds" in cells[2]
    assert cells[3:] == ["3", "tiny", "6", "3.0"]


def test_a_study_that_compares_something_has_a_picture(script, tmp_path, monkeypatch):
    (claim,) = script.claims.load("li2022/c10")
    planned = script.evidence.needs(claim)[0].planned
    study = script.evidence_studies.Study("z", "demo", "which?", "task=e2e", {"a": "", "b": ""})
    for row, value in {"a": 0.4, "b": 0.5}.items():
        for seed in study.seeds:
            name = script.evidence_studies.label(study, row, f"s{seed}")
            path = tmp_path / "results/evidence/study-demo" / name
            write_record(path, planned, seed, {"BLEU": value})
    page = tmp_path / "results/README.md"
    page.write_text(f"Results\n{script.BEGIN}\n{script.END}\n")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script.claims, "load", list)
    monkeypatch.setattr(script.evidence_studies, "RESULTS", tmp_path / "results/evidence")
    monkeypatch.setattr(script.evidence_studies, "STUDIES", (study, replace(study, name="none")))
    script.write(tmp_path / "pictures")
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["study-demo.png"]
    said = "which? **a (BLEU 40.00): behind b (50.00).** 6 runs, 3 seeds of each setting."
    assert f"Study [demo](evidence/study-demo/README.md): {said}" in page.read_text()


@pytest.mark.parametrize(("unit", "place"), [("BLEU", -10.0), ("", -20.0)])
def test_a_difference_is_drawn_in_a_scores_unit_or_in_per_cent(script, unit, place):
    numbers = {"first": 40.0, "second": 50.0, "ahead": -10.0}
    one = script.Comparison(
        script.Side.LAPTOP, "a against b", "", script.Outcome.CLOSE, numbers=numbers
    )
    axes = Figure().subplots()
    script.draw(axes, [one], unit)
    assert axes.lines[0].get_xdata() == [place]
    assert axes.get_xlabel().startswith(f"difference in {unit or 'per cent of the second number'};")
