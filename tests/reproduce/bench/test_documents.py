"""Files of dpft bench are found once each, and damaged ones are named."""

import json

from dpft.reproduce.bench.documents import read_benches


def names(folders=None):
    """Of the files that were read, each with its styles; and the lines for damaged ones."""
    files, damaged = read_benches(folders)
    return [(file.path.name, list(file.styles)) for file in files], damaged


def write(file, *styles):
    settings = {"model": "gpt2", "length": 100, "batch": 4, "device": "cpu"}
    summary = [{"label": style, "rounds": 7} for style in styles]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"settings": settings, "labels": ["gpt2"], "summary": summary}))


def test_files_come_by_path_and_once_each(tmp_path):
    write(tmp_path / "b.json", "bk")
    write(tmp_path / "a" / "deep.json", "materialised", "ghost")
    (tmp_path / "c.json").symlink_to(tmp_path / "b.json")
    (tmp_path / "other.json").write_text('{"something": "else"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    files, damaged = names([tmp_path, tmp_path / "a"])
    assert files == [("deep.json", ["materialised", "ghost"]), ("b.json", ["bk"])]
    assert not damaged


def test_damaged_files_are_named_and_the_others_read(tmp_path):
    (tmp_path / "cut.json").write_text('{"summary": [')
    (tmp_path / "keys.json").write_text('{"summary": [{"name": "bk"}]}')
    (tmp_path / "latin.json").write_bytes(b'{"summary": "\xe9"}')
    (tmp_path / "nested.json").write_text("[" * 100_000)
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    write(tmp_path / "whole.json", "bk")
    files, damaged = names([tmp_path])
    assert files == [("whole.json", ["bk"])]
    broken = ["circle", "cut", "keys", "latin", "nested", "number"]
    assert [line.split()[0] for line in damaged] == [f"{tmp_path}/{name}.json" for name in broken]
    assert "KeyError('settings')" in damaged[2]
