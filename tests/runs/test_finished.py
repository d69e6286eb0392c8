"""A finished run is what its marker lists, or it is damaged; a lost ledger is not begun anew."""

import pytest

from dpft import runs
from dpft.runs import Ledger, LedgerMismatchError, RunDirectory, write_record
from dpft.runs.folders import damages
from tests.report.pages.example import record
from tests.small_runs import Killed


@pytest.fixture
def done(run: RunDirectory) -> RunDirectory:
    with Ledger(run.ledger, {}) as ledger:
        for step in range(3):
            ledger.spend(step)
    run.model.mkdir()
    for name in ("config.json", "README.md"):
        (run.model / name).write_text(name)
    (run.model / "model.safetensors").write_bytes(bytes(100))
    run.generations("test").write_text("{}\n")
    write_record(run, record(config_hash=run.config_hash))
    run.mark_done()
    return run


def test_a_whole_run_has_no_damage_and_what_may_change_may_change(done: RunDirectory) -> None:
    assert damages(done.path) == []
    (done.model / "README.md").write_text("edited")
    (done.path / "report.html").write_text("a page")
    (done.model / "weights.gguf").write_text("converted")
    (done.private / "README.md").unlink()
    assert damages(done.path) == []


def test_what_is_gone_cut_or_changed_is_named(done: RunDirectory) -> None:
    named = ("record.json", "ledger.jsonl", "config.yaml")
    for name in (*named, "model/model.safetensors", "generations/test.jsonl"):
        file = done.path / name
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        size = f"{len(whole) - 1:,} bytes, expected {len(whole):,}"
        assert damages(done.path) == [f"{name} has {size}"]
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        assert damages(done.path) == [f"{name} is not what it was when the run was finished"]
        file.unlink()
        assert damages(done.path) == [f"{name} is gone"]
        file.write_bytes(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-9],
        lambda text: text.replace('"size": 100', '"size": 10'),
        lambda text: text.replace('"sha256"', '"other"'),
        lambda text: text[: text.index('"files"')].rstrip(", \n") + "}",
    ],
)
def test_a_damaged_marker_proves_nothing(done: RunDirectory, change) -> None:
    done.done_marker.write_text(change(done.done_marker.read_text()))
    assert not done.is_done
    assert damages(done.path) == []


def test_a_kill_while_a_file_is_replaced_is_no_damage_but_a_torn_file_is(
    done: RunDirectory,
) -> None:
    file = done.generations("test")
    for written in (file.read_text(), "new\n"):
        with pytest.raises(Killed), runs.replacing(done.path, file, "new\n"):
            raise Killed(file.write_text(written))
        assert damages(done.path) == []
    with runs.replacing(done.path, file, "new\n"):
        file.write_text("new\n")
    assert damages(done.path) == []
    file.write_text("ne")
    assert damages(done.path) == ["generations/test.jsonl has 2 bytes, expected 4"]


@pytest.mark.parametrize(
    ("name", "content", "steps"),
    [
        ("private/metrics.jsonl", '{"step": 0}\n{"step": 1}\n{"st', 2),
        ("private/metrics.jsonl", '{"step": 0}\n\0\0\0\n', 1),
        ("checkpoints/step-00000002/part-00000", "", 2),
        ("model/model.safetensors", "x", 5),
        ("record.json", "{", 5),
        ("DONE", "", 5),
    ],
)
def test_a_ledger_that_counts_less_than_anything_else_tells_of_is_refused(
    run: RunDirectory, name: str, content: str, steps: int
) -> None:
    (run.path / name).parent.mkdir(parents=True, exist_ok=True)
    (run.path / name).write_text(content)
    with pytest.raises(LedgerMismatchError, match=rf"is gone, but .* shows {steps};.*force=true"):
        runs.check_ledger(run.path, planned=5)
    with Ledger(run.ledger, {}) as ledger:
        for step in range(steps - 1):
            ledger.spend(step)
        with pytest.raises(LedgerMismatchError, match=f"holds {steps - 1} steps, but"):
            runs.check_ledger(run.path, planned=5)
        ledger.spend(steps - 1)
    runs.check_ledger(run.path, planned=5)
