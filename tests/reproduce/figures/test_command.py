"""``dpft figure`` as it is typed, and the files that it writes."""

import csv

import pytest
import typer
from matplotlib import rc_context
from typer.testing import CliRunner

from dpft.cli import sweep
from dpft.cli.app import app
from dpft.config.errors import ConfigError
from dpft.reproduce.figures.catalog import Figure, figures
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.reproduce.figures.draw import RC, draw, save
from dpft.reproduce.figures.inputs import plan_tables
from dpft.reproduce.tables import record_index
from dpft.reproduce.tables.record_index import Index
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


def test_missing_and_run_are_those_of_tables(monkeypatch):
    result = invoke("he2022/6", "scale=laptop", "--missing", "device=cpu")
    lines = result.stdout.splitlines()
    assert len(lines) == 8
    assert all(line.startswith("dpft train ") and " device=cpu" in line for line in lines)
    calls = []

    def swept(words, *, file, keep_going, chooses):
        calls.append((file.name, len(file.read_text().splitlines())))
        raise typer.Exit(1)

    monkeypatch.setattr(sweep, "run_sweep", swept)
    result = invoke("he2022/6", "scale=laptop", "--run")
    assert calls == [("he2022-6-laptop.txt", 8)]
    assert result.exit_code == 2
    assert "nothing to draw" in result.stderr


def test_what_is_printed_is_drawn_without_any_run(tmp_path):
    assert invoke("bu2023/6", "--out", "here").exit_code == 0
    assert (tmp_path / "here" / "bu2023-6.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["li2022/3"], "did you mean li2022/3a or li2022/3b?"),
        (["li2022/66"], "did you mean 'li2022/6'?"),
        (["li2022/3b"], "record_norms=1"),
        (["bu2023/2"], "has no data"),
        (["li2022/6", "--missing"], "needs no runs of its own"),
        (["li2022/6", "eps=3"], "computed from the paper alone"),
        (["li2022/7"], "has nothing to draw"),
        (["he2022/2"], "record_norms"),
        (["li2022/4"], "type dpft bench"),
        (["li2022/4", "--bench", "nowhere"], "is no folder"),
        (["he2022/6", "seed=1"], "type --seeds"),
        (["--run"], "without a figure"),
    ],
)
def test_what_cannot_be_is_refused(words, message):
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_a_scale_that_no_table_of_a_figure_has_is_refused():
    one = figures()["li2022/5"]
    lists = tuple(table for table in one.tables if table.is_list)
    alone = one.model_copy(update={"tables": lists})
    with pytest.raises(ConfigError, match="no runs that fit a laptop; type dpft figure li2022/5"):
        plan_tables(alone, "laptop", Index())


def test_all_figures_are_listed(tmp_path):
    one = planned("he2022/6", share=1, epsilon=3)
    write_record(tmp_path / "runs" / "x", one, 0, {"accuracy": 0.8}, "dev")
    result = invoke()
    assert result.exit_code == 0, result.output
    assert all(name in result.stdout for name in figures())
    (line,) = [line for line in result.stdout.splitlines() if line.split()[:1] == ["he2022/6"]]
    assert line.split()[1:4] == ["runs", "0/16", "1/8"]


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


def test_a_cell_of_a_map_shows_its_deviation_over_seeds():
    axes = Axis("x", names=("a", "b")), Axis("y", names=("c",))
    heat = Heat("h", *axes, "z", ((FigurePoint(0, 57.41, 1.23, marks="L"), FigurePoint(1, 20.0)),))
    with rc_context(RC):
        figure = draw(about(), Content((heat,), ("Said.",)))
    assert [text.get_text() for text in figure.axes[0].texts] == ["57.4\n±1.2\nL", "20.0"]


def test_one_series_alone_says_whose_numbers_it_has():
    """Below the paper's name, ours would else be taken for the paper's."""

    def legend(**about_series):
        series = Series("epsilon 3", (FigurePoint(1, 2.0),), Origin.OURS, **about_series)
        panel = Panel("p", Axis("x"), Axis("y"), (series,))
        with rc_context(RC):
            figure = draw(about(), Content((panel,), ("Said.",)))
        return [text.get_text() for one in figure.legends for text in one.get_texts()]

    assert legend(legend_origin=True) == ["epsilon 3, ours"]
    assert legend() == []


def test_a_level_has_its_marks_at_its_end():
    point = FigurePoint(float("nan"), 50.9, marks="LC")
    series = (Series("first token", (point,), Origin.OURS, "level"),)
    panel = Panel("p", Axis("x"), Axis("y"), series)
    with rc_context(RC):
        figure = draw(about(), Content((panel,), ("Said.",)))
    (text,) = figure.axes[0].texts
    assert (text.get_text(), text.xy) == ("LC", (1, 50.9))


def test_numbers_of_a_map_are_read_on_its_own_colours():
    """Where two maps share their colours, one may be all dark: black would not be seen on it."""
    axes = Axis("x", names=("a", "b")), Axis("y", names=("c",))
    cells = ((FigurePoint(0, 1.0), FigurePoint(1, 2.0)),)
    for limits, colours in ((None, ["white", "black"]), ((0.0, 60.0), ["white", "white"])):
        heat = Heat("h", *axes, "z", cells, limits=limits)
        with rc_context(RC):
            figure = draw(about(), Content((heat,), ("Said.",)))
        assert [text.get_color() for text in figure.axes[0].texts] == colours


def test_private_figures_are_for_their_owner(tmp_path):
    for path in save(about("private"), example(), tmp_path):
        assert path.stat().st_mode & 0o077 == 0


def test_legend_title_and_caption_keep_off_the_panels():
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with rc_context(RC):
        figure = draw(about(), example())
        FigureCanvasAgg(figure).draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    others = [figure.legends[0].get_window_extent(), figure._suptitle.get_window_extent()]
    others.append(figure._supxlabel.get_window_extent())
    assert not any(box.overlaps(other) for box in boxes for other in others)
    assert not others[0].overlaps(others[1])
