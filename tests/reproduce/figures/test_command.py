"""``dpft figure`` as it is typed, and the files that it writes."""

import csv

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.reproduce.figures.catalog import Figure
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.reproduce.figures.draw import save
from dpft.reproduce.tables import record_index
from tests.reproduce.figures.example import planned
from tests.reproduce.tables.example import write_record


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Nor are the results of the checkout there.
    monkeypatch.setattr(record_index, "conf_dir", lambda: tmp_path / "conf")


def invoke(*words):
    return CliRunner().invoke(app, ["figure", *words])


def test_a_figure_is_three_files(tmp_path):
    one = planned("he2022/6", share=1, epsilon=3)
    write_record(tmp_path / "runs" / "x", one, 0, {"accuracy": 0.8}, "dev")
    result = invoke("he2022/6", "scale=laptop", "--out", "here")
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [f"here/he2022-6.{s}" for s in ("png", "svg", "csv")]
    assert "7 runs are missing" in result.stderr
    with (tmp_path / "here" / "he2022-6.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["series"], row["origin"], float(row["x"])) == ("epsilon 3", "ours", 1)
    assert float(row["y"]) == pytest.approx(80)
    assert row["source"] == "x"
    assert "laptop scale" in (tmp_path / "here" / "he2022-6.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["li2022/66"], "did you mean 'li2022/6'?"),
        (["bu2023/2"], "has no data"),
        (["li2022/6", "eps=3"], "computed from the paper alone"),
        (["he2022/2"], "record_norms"),
        (["bu2023/5"], "type dpft bench"),
        (["li2022/4"], "dpft plan --largest"),
    ],
)
def test_what_cannot_be_is_refused(words, message):
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def about(kind="runs"):
    return Figure(name="demo/1", title="A title", source="Source", kind=kind)


def example():
    series = [
        Series(f"a series {i}", (FigurePoint(1, i, 0.2, "a", "L"), FigurePoint(2, 1)), origin)
        for i in range(3)
        for origin in Origin
    ]
    series.append(Series("level", (FigurePoint(float("nan"), 2),), Origin.OURS, "level"))
    series.append(Series("steps", (FigurePoint(1, 2), FigurePoint(2, 0)), Origin.OURS, "steps"))
    series.append(Series("lines", (FigurePoint(1.5, 0),), Origin.OURS, "verticals"))
    panel = Panel("p", Axis("x", "log"), Axis("y", from_zero=True), tuple(series))
    cells = ((FigurePoint(0, 1.0), None),)
    heat = Heat("h", Axis("x", names=("a", "b")), Axis("y", names=("c",)), "z", cells)
    return Content((panel, heat), ("Said. " * 60,))


def test_equal_content_gives_equal_files(tmp_path):
    one, again = (
        [path.read_bytes() for path in save(about(), example(), tmp_path / name)] for name in "ab"
    )
    assert one == again
    table = one[2].decode().splitlines()
    assert table[0] == "panel,series,origin,x,y,deviation,label,marks,source"
    assert len(table) == 1 + 18 + 1 + 2 + 1 + 1
    assert "h,c,ours,a,1.0,,,," in table


def test_private_figures_are_for_their_owner(tmp_path):
    for path in save(about("private"), example(), tmp_path):
        assert path.stat().st_mode & 0o077 == 0
