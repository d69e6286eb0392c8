"""The settings of a run that is not there: what is said instead."""

import os
from pathlib import Path

import pytest

from dpft.config.errors import ConfigError
from dpft.runs.errors import RecordError
from dpft.runs.record import read_record
from dpft.runs.stored import stored_config


def test_runs_that_are_there_are_named_the_latest_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("visits", "letters", "notes", "mails", "private")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text("{}")
        os.utime(tmp_path / "runs" / name, (1e9 - age, 1e9 - age))
    with pytest.raises(ConfigError, match="expected a run directory") as caught:
        stored_config(Path("vists"))
    said = str(caught.value)
    assert "vists holds no config.yaml" in said
    assert "did you mean 'visits'?" in said
    assert said.endswith("the latest here: runs/visits, runs/letters, runs/notes and 1 more")
    with pytest.raises(ConfigError, match="the latest here: runs/visits"):
        stored_config(Path("runs"))  # the folder of runs, and not one of them


def test_a_record_that_is_not_there_is_answered_likewise(tmp_path, monkeypatch):
    """``dpft compare runs`` and a name that was mistyped: no run was begun, none continues."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "visits").mkdir(parents=True)
    (tmp_path / "runs" / "visits" / "config.yaml").write_text("{}")
    for typed in ("runs", "runs/vists", "runs/vists/record.json"):
        with pytest.raises(RecordError, match=r"does not exist.*latest here: runs/visits$") as told:
            read_record(Path(typed))
        assert "continues" not in str(told.value)
    with pytest.raises(RecordError, match="did you mean 'visits'"):
        read_record(Path("runs/vists"))
    with pytest.raises(RecordError, match=r"which continues where it stopped$"):
        read_record(Path("runs/visits"))


def test_without_runs_the_advice_is_general(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"give the folder itself$"):
        stored_config(Path("nowhere"))


def test_trials_of_a_selection_are_neither_named_nor_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    private = Path("runs/selections/mine/private")
    for name in ("a", "b"):
        (private / "trials" / name).mkdir(parents=True)
        (private / "trials" / name / "config.yaml").write_text("{}")
    (private / "selection_key").write_bytes(b"key")
    for typed in ("c", "."):
        with pytest.raises(ConfigError, match=r"give the folder itself$"):
            stored_config(private / "trials" / typed)
