"""``dpft claims`` as it is typed, in a folder that is empty."""

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.reproduce.claims.claim import load
from dpft.reproduce.tables import record_index


@pytest.fixture(autouse=True)
def _empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Nor are the results of the checkout there.
    monkeypatch.setattr(record_index, "conf_dir", lambda: tmp_path / "conf")


def invoke(*words):
    return CliRunner().invoke(app, ["claims", *words])


def test_a_papers_claims_without_any_record():
    result = invoke("he2022")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "he2022/c13" in text
    assert "scale=laptop --seeds 0,1,2,3,4 --run" in text


def test_a_summary_counts_the_words_of_each_paper():
    result = invoke("--summary")
    assert result.exit_code == 0, result.output
    words, counts = result.stdout.splitlines()[1].split(), result.stdout.splitlines()[3:]
    assert words[-3:] == ["li2022", "he2022", "bu2023"]
    shown = [[int(n) for n in line.split()[-3:]] for line in counts if line.strip()]
    assert [*map(sum, zip(*shown, strict=True))] == [
        len([claim for claim in load() if claim.name.startswith(paper)]) for paper in words[-3:]
    ]


def test_one_claim_and_a_damaged_benchmark(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    result = invoke("bu2023/c12", "--bench", ".")
    assert result.exit_code == 0, result.output
    assert "By ours: holds, computed: 2 of 2 hold" in " ".join(result.stdout.split())
    assert "broken.json" in result.stderr
    assert "difference 3" in " ".join(invoke("li2022/c02").stdout.split())
