"""``dpft claims`` as it is typed, in a folder that is empty."""

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
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


def test_one_claim_and_a_damaged_benchmark(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    result = invoke("bu2023/c12", "--bench", ".")
    assert result.exit_code == 0, result.output
    assert "By ours: holds, computed: 2 of 2 hold" in " ".join(result.stdout.split())
    assert "broken.json" in result.stderr
    assert "difference 3" in " ".join(invoke("li2022/c02").stdout.split())
