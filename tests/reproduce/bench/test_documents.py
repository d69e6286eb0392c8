"""Results have a table, failures included; files are found once, and damaged ones are named."""

import json

from dpft.reproduce.bench.documents import read_benches, summarise, table
from tests.reproduce.bench.fakes import FACTS, REFUSED, result, settings


def test_a_row_has_ratios_and_ranges_and_a_failure_its_message():
    made = settings(styles="bk,ghost", peers="opacus", rounds=1)
    outcomes = {"bk": result(1.25, 103e6), "ghost": REFUSED, "opacus": result(2.5, 2e8)}
    rows = [
        {"round": 0, "load": [0.5], "variant": name}
        | {"result": outcomes.get(name, result(1.0, 1e8))}
        for name in made.variants
    ]
    shown = table(made, FACTS, rows, summarise(made, rows))
    assert shown.title == "tiny, untied, B=8, T=64, float32, a processor, 1 thread, torch 2.0"
    assert shown.rows[1] == ("bk", "1.2500", "1.25 (1.25–1.25)", "103", "1.03 (1.03–1.03)")
    assert shown.rows[2] == ("ghost", *["-"] * 4)
    assert shown.rows[3][:3] == ("opacus", "2.5000", "2.50 (2.50–2.50)")
    notes = dict(shown.notes)
    assert "Load average of the machine at the start: 0.50" in notes["Measured"]
    assert notes["ghost"].startswith(REFUSED["message"])


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
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "circle.json").symlink_to(tmp_path / "circle.json")
    write(tmp_path / "whole.json", "bk")
    files, damaged = names([tmp_path])
    assert files == [("whole.json", ["bk"])]
    broken = ["circle", "cut", "keys", "latin", "number"]
    assert [line.split()[0] for line in damaged] == [f"{tmp_path}/{name}.json" for name in broken]
    assert "KeyError('settings')" in damaged[2]
