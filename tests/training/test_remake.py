"""A finished run that was damaged: an error names the file; most can be made again."""

import shutil
from pathlib import Path

import pytest

from dpft import runs
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.small_runs import settings

WEIGHTS, LEDGER = "model/model.safetensors", "ledger.jsonl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(settings(tmp_path_factory.mktemp("original"))).path


@pytest.mark.parametrize("name", [WEIGHTS, "record.json", LEDGER])
def test_a_damaged_file_is_named_and_made_again_once_the_marker_is_removed(
    original, tmp_path, name
):
    path, run = Path(shutil.copytree(original, tmp_path / "small")), settings(tmp_path)
    (path / name).write_bytes((path / name).read_bytes()[:-7])
    for use in (lambda: run_experiment(run), lambda: loaded_run(path).loaded):
        with pytest.raises(runs.RunError, match=rf"{name} .*|record"):
            use()
    assert (path / "DONE").exists()
    (path / "DONE").unlink()
    if name == LEDGER:  # nothing can make it again
        with pytest.raises(runs.LedgerError):
            run_experiment(run)
        return
    again = run_experiment(run)
    assert not again.already_done
    for file in (WEIGHTS, LEDGER):
        assert (path / file).read_bytes() == (original / file).read_bytes()
    old = runs.read_record(original)
    for section in ("privacy", "mechanism", "scores"):
        assert again.record[section] == old[section], section
    assert run_experiment(run).already_done
