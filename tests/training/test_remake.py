"""A finished run that was damaged: made whole by the same command, or refused with advice."""

import shutil
from pathlib import Path

import pytest

from dpft import runs
from dpft.cli.report import main as report
from dpft.cli.score import decode, score_run
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run

WORDS = [
    *("task=text2text", "task.source=sample", "task.limit_train=12", "task.limit_eval=2"),
    *("task.max_length=48", "model=random-gpt2", "clip=bk", "optim.batch_size=4", "optim.steps=2"),
    *("decode=greedy", "decode.max_new_tokens=3", "threads=1", "name=one"),
]
WEIGHTS = "model/model.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    path = run_experiment(parse(compose([*WORDS, f"runs_dir={folder}"]))).path
    decode(path, ["decode.max_new_tokens=2"])
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "one"))


def again(path: Path) -> bool:
    """The same command; whether it said that the run is done."""
    return run_experiment(parse(compose([*WORDS, f"runs_dir={path.parent}"]))).already_done


def kill(path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command, which ends where a function is called."""

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, killed)
        with pytest.raises(KeyboardInterrupt):
            again(path)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def gone(file: Path) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((WEIGHTS, cut), ("record.json", flip), ("generations/test.jsonl", gone)),
        *(("model", gone), ("model/README.md", gone), ("config.yaml", gone)),
    ],
)
def test_what_can_be_made_again_is_made_again_with_a_sentence(
    path: Path, original: Path, capsys: pytest.CaptureFixture[str], name, damage
) -> None:
    damage(path / name)
    assert not again(path)
    assert f"was finished, but {name}" in " ".join(capsys.readouterr().err.split())
    for file in (WEIGHTS, "ledger.jsonl", "generations/test.jsonl"):
        assert (path / file).read_bytes() == (original / file).read_bytes()
    old, new = runs.read_record(original), runs.read_record(path)
    for section in ("privacy", "mechanism", "scores"):
        assert new[section] == old[section], section
    assert runs.damages(path) == []
    assert again(path)
    assert "was finished" not in capsys.readouterr().err


@pytest.mark.parametrize("damage", [cut, gone])
def test_a_damaged_ledger_of_a_finished_run_is_refused_everywhere(
    path: Path, damage, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(path / "ledger.jsonl")
    before = (path / "DONE").read_bytes()
    with pytest.raises(runs.LedgerError, match=r"ledger\.jsonl .*Put"):
        again(path)
    with pytest.raises(runs.RunError, match="resume="):
        loaded_run(path)
    with pytest.raises(runs.RunError, match="resume="):
        score_run(path)
    capsys.readouterr()
    report([path])
    assert "though the run was finished: do not rely on it" in capsys.readouterr().err
    assert "ledger.jsonl" in (path / "report.html").read_text().partition("though the run was")[0]
    assert (path / "DONE").read_bytes() == before
    # Nor is it accepted once the marker is gone.
    (path / "DONE").unlink()
    with pytest.raises(runs.LedgerError):
        again(path)


def test_what_was_damaged_is_not_believed_after_a_kill(path: Path, monkeypatch) -> None:
    """The marker, which told that it is damaged, is gone while it is made again."""
    score_run(path)
    record = (path / "record.json").read_text()
    (path / "record.json").write_text(record.replace('"examples": 2', '"examples": 7'))
    flip(path / WEIGHTS)
    kill(path, "dpft.training.session.Session.train", monkeypatch)
    with pytest.raises(runs.RecordError):
        loaded_run(path)
    assert not (path / WEIGHTS).exists()
    assert not again(path)
    assert {split["examples"] for split in runs.read_record(path)["scores"].values()} == {2}


def test_where_the_key_is_deleted_the_damaged_file_is_to_be_put_back(
    path: Path, original: Path
) -> None:
    """As `docs/reference/runs.md` advises, ``private/`` is deleted in the end."""
    shutil.rmtree(path / "private")
    assert again(path)
    cut(path / WEIGHTS)
    with pytest.raises(runs.RunError, match=r"noise_key is missing.*\n.*put back from a copy"):
        again(path)
    assert (path / "DONE").exists()
    shutil.copy(original / WEIGHTS, path / WEIGHTS)
    assert again(path)
