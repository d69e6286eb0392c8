"""Files of dpft bench are found once each, and damaged ones are named."""

import json
import subprocess
import sys

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.documents import read_documents


def labels(path, content):
    return path.name, [one["label"] for one in content["summary"]]


def write(file, *names):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"summary": [{"label": name} for name in names]}))


def test_files_come_by_path_and_once_each(tmp_path):
    write(tmp_path / "b.json", "bk")
    write(tmp_path / "a" / "deep.json", "flat", "ghost")
    (tmp_path / "c.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "other.json").write_text('{"something": "else"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    found, damaged = read_documents(labels, [tmp_path, tmp_path / "a"])
    assert found == [("deep.json", ["flat", "ghost"]), ("b.json", ["bk"])]
    assert not damaged


def test_damaged_files_are_named_and_the_others_read(tmp_path):
    (tmp_path / "cut.json").write_text('{"summary": [')
    (tmp_path / "keys.json").write_text('{"summary": [{"name": "bk"}]}')
    (tmp_path / "latin.json").write_bytes(b'{"summary": "\xe9"}')
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    write(tmp_path / "whole.json", "bk")
    found, damaged = read_documents(labels, [tmp_path])
    assert found == [("whole.json", ["bk"])]
    names = ["circle", "cut", "keys", "latin", "number"]
    assert [line.split()[0] for line in damaged] == [f"{tmp_path}/{name}.json" for name in names]
    assert "KeyError('label')" in damaged[2]


def test_without_folders_the_usual_ones_are_read_where_they_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_documents(labels) == ([], [])
    write(tmp_path / "results" / "bench" / "b.json", "bk")
    write(tmp_path / "elsewhere" / "c.json", "bk")
    assert read_documents(labels)[0] == [("b.json", ["bk"])]
    with pytest.raises(ConfigError, match=r"--bench nowhere is no folder; expected one with files"):
        read_documents(labels, [tmp_path.relative_to(tmp_path) / "nowhere"])


def test_reading_them_needs_no_torch():
    code = (
        "import sys, dpft.reproduce.bench.documents;"
        "print(sorted({'torch', 'numpy'} & {*sys.modules}))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
