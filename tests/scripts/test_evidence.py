"""The queue of the evidence: what claims lack, each run once."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dpft.reproduce.tables.record_index import make_index
from tests.reproduce.tables.example import write_record

FILE = Path(__file__).parents[2] / "scripts" / "evidence.py"


@pytest.fixture(scope="module")
def queue():
    spec = importlib.util.spec_from_file_location("evidence", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_that_the_script_prints(queue):
    page = (FILE.parents[1] / "docs" / "explanation" / "evidence.md").read_text(encoding="utf-8")
    assert queue.page() in page


def test_runs_of_claims_fit_a_laptop_and_are_made_once(queue):
    listed = queue.queue()
    assert max(queue.minutes(need.planned.run) for _, own, _ in listed for need in own) < 17
    new = [need.planned.key for _, _, news in listed for need in news]
    assert len(new) == len(set(new)) > 100
    assert {need.planned.key for _, own, _ in listed for need in own} == set(new)


def test_a_claim_needs_the_rows_that_it_compares(queue):
    (claim,) = queue.claims.load("li2022/c10")
    styles = {need.planned.run.optim.name for need in queue.needs(claim)}
    assert styles == {"sgd", "adam"}
    # Against copied rows nothing is decided at this scale.
    for name in ("he2022/c08", "li2022/c09", "bu2023/c16"):
        assert not queue.needs(queue.claims.load(name)[0]), name


def test_a_seed_that_is_recorded_is_not_made_again(queue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "records", lambda: make_index([tmp_path]))
    (claim,) = queue.claims.load("li2022/c10")
    own = queue.needs(claim)
    write_record(tmp_path / "x", own[0].planned, 2, {"BLEU": 0.5})
    lines = []

    def swept(command, **_):
        lines.extend(Path(command[-1]).read_text().splitlines())
        for need in own:
            for seed in need.lacking(queue.records()):
                write_record(
                    tmp_path / f"{need.planned.key}{seed}", need.planned, seed, {"BLEU": 1.0}
                )

    monkeypatch.setattr(queue.subprocess, "run", swept)
    assert queue.decide(claim, own)
    assert [line.rpartition("=")[2] for line in lines] == ["0", "1", "0", "1", "2"]
    assert queue.decide(claim, own)
    assert len(lines) == 5  # nothing is begun where nothing lacks


def test_a_claim_waits_for_the_rungs_that_its_runs_begin_with(queue, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (claim,) = queue.claims.load("li2022/c04")
    monkeypatch.setattr(queue.subprocess, "run", lambda *_, **__: pytest.fail("began"))
    assert not queue.decide(claim, queue.needs(claim))
    assert "pretrain_ladder.py 3m --text text --out ladder" in capsys.readouterr().out
