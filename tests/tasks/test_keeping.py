"""Tables that are kept change how soon a run starts, and nothing else."""

import errno
import json
import stat
import threading

import pyarrow as pa
import pytest

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.tasks import table_files
from dpft.tasks.keeping import Keeping, code, keeping_of
from dpft.tasks.objectives import encoding
from dpft.training.run import run_experiment

BATCHES = [pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})]


def make():
    yield from BATCHES


def get(keeping, identity="a", batches=make):
    return keeping.table("numbers", identity, batches)["n"].to_pylist()


@pytest.fixture
def keeping(tmp_path):
    return Keeping(tmp_path / "runs/private/cache", pytest.fail, pytest.fail)


def test_a_table_is_made_once_for_each_identity(keeping):
    assert get(keeping) == get(keeping, batches=None) == [1, 2, 3]
    with pytest.raises(TypeError):
        get(keeping, "b", None)


def test_only_the_owner_can_read_a_table_and_its_name_is_keyed(keeping, tmp_path):
    get(keeping, "the secret of record 7")
    paths = [keeping.folder.parent, *keeping.folder.parent.rglob("*")]
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
    assert modes == {(True, 0o700), (False, 0o600)}
    other = Keeping(tmp_path / "other/private/cache", pytest.fail, pytest.fail)
    get(other, "the secret of record 7")
    names = {file.name for one in (keeping, other) for file in one.folder.glob("*.arrow")}
    assert len(names) == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_an_interrupted_table_leaves_nothing(keeping, stop):
    def stopped():
        yield BATCHES[0]
        raise stop

    with pytest.raises(stop):
        get(keeping, batches=stopped)
    assert not [*keeping.folder.glob("*.arrow"), *keeping.folder.glob("*.partial")]
    (keeping.folder / "left.partial").write_text("of a killed process")
    assert get(keeping) == [1, 2, 3]


def test_a_damaged_table_is_made_again(keeping):
    get(keeping)
    (file,) = keeping.folder.glob("*.arrow")
    for damage in (b"", file.read_bytes()[:100]):
        file.write_bytes(damage)
        assert get(keeping) == [1, 2, 3]
        assert get(keeping, batches=None) == [1, 2, 3]


def test_a_full_disk_is_reported_and_the_run_goes_on(tmp_path):
    said = []
    keeping = Keeping(tmp_path / "private/cache", said.append, pytest.fail)

    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    assert keeping.table("numbers", "a", full) is None
    assert "numbers cannot be kept in" in said[0]
    assert "No space left on device" in said[0]
    assert "cache=none" in said[0]


def test_another_process_waits_for_the_first(keeping):
    waits, found, said = threading.Event(), [], []

    def say(text):
        said.append(text)
        waits.set()

    second = Keeping(keeping.folder, pytest.fail, say)
    thread = threading.Thread(target=lambda: found.append(get(second, batches=None)), daemon=True)

    def first():
        thread.start()
        assert waits.wait(20)
        assert not found
        yield from BATCHES

    assert get(keeping, batches=first) == [1, 2, 3]
    thread.join(20)
    assert found == [[1, 2, 3]]
    assert "waiting for another run, which prepares numbers" in said[0]


def test_runs_on_kept_tables_are_the_same_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "LARGE", 1)
    monkeypatch.setattr(table_files, "LARGE", 0)
    rows = [{"text": f"text {n} " * (1 + n % 5), "who": f"u{n % 20}"} for n in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*overrides):
        typed = [
            "task=language_modeling", f"task.train_file={tmp_path}/a.jsonl", "task.test_share=0.2",
            "task.max_length=24", "task.unit=user", "task.user_column=who", "task.limit_eval=2",
            "optim.batch_size=4", "optim.steps=2", "privacy.noise_seed=1", "threads=1",
            f"runs_dir={tmp_path}/runs",
        ]  # fmt: skip
        outcome = run_experiment(parse(compose([*typed, *overrides])))
        return (outcome.path / "ledger.jsonl").read_text(), outcome.record["scores"]

    plain = run("name=plain", "cache=none")
    cache = tmp_path / "runs/private/cache"
    assert not cache.exists()
    assert run("name=first") == plain
    made = {file: file.stat().st_mtime_ns for file in cache.glob("*.arrow")}
    assert len(made) == 2  # what was read, and what was encoded
    assert run("name=second") == plain
    assert {file: file.stat().st_mtime_ns for file in cache.glob("*.arrow")} == made


def test_the_place_of_the_cache_is_no_part_of_a_run(tmp_path):
    raw = compose(["task=e2e", f"runs_dir={tmp_path}", "name=a/b"])
    plain, elsewhere, nowhere = (
        parse({**raw, "cache": cache}) for cache in ("auto", str(tmp_path / "my"), "none")
    )
    assert plain.identity() == elsewhere.identity() == nowhere.identity()
    folders = [keeping_of(run, print, print).folder for run in (plain, elsewhere)]
    assert folders == [tmp_path / "a/private/cache", tmp_path / "my/private/cache"]
    assert keeping_of(nowhere, print, print) is None


def test_other_versions_make_other_tables(monkeypatch):
    before = code()
    assert code() == before
    monkeypatch.setattr("dpft.tasks.keeping.version", lambda name: f"{name} of tomorrow")
    assert code() != before
