"""Points, heat maps, curves and files of figures, from records and benchmarks by hand."""

import math

import pytest
import torch

from dpft.privacy.accounting import calibrate_noise, epsilon_rdp
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.figures import computed
from dpft.reproduce.figures.catalog import ROOT, Figure, FigureKind, Inputs, figures, load
from dpft.reproduce.figures.computed import Layer
from dpft.reproduce.figures.content import Axis, Content, FigurePoint, Heat, Origin, Panel, Series
from dpft.reproduce.figures.draw import BUILDERS, save
from dpft.reproduce.figures.measured import POSITIONS
from dpft.reproduce.figures.private import WARNING
from dpft.runs.log import NORMS, MetricsLog, norms_of
from tests.reproduce.figures.example import content, planned, write_bench
from tests.reproduce.tables.example import write_record


def test_scores_stand_at_their_setting_with_their_marks(tmp_path):
    for share, score in ((1, 0.8), (0.01, 0.7)):
        one = planned("he2022/6", share=share, epsilon=3)
        write_record(tmp_path / f"s{share}", one, 0, {"accuracy": score}, "dev")
    figure = content("he2022/6", tmp_path)
    (panel,) = figure.panels
    (series,) = panel.series
    assert series.label == "epsilon 3"
    places = [(p.x, p.y) for p in series.points]
    assert places == [(0.01, pytest.approx(70)), (1, pytest.approx(80))]
    assert "L" in series.points[0].marks
    assert any(line.startswith("LAPTOP SCALE") for line in figure.caption)
    assert any("L: laptop scale" in line for line in figure.caption)


def test_heat_maps_lie_beside_each_other(tmp_path):
    one = planned("li2022/2", **{"learning rate": 0.001, "batch size": 1024})
    write_record(tmp_path / "x", one, 0, {"BLEU": 0.25})
    printed, ours = content("li2022/2", tmp_path).panels
    assert printed.cells[0][0].y == 2.12
    assert (printed.y.names[0], printed.x.label) == ("0.001", "batch size")
    place = (ours.y.names.index("0.001"), ours.x.names.index("1024"))
    cell = ours.cells[place[0]][place[1]]
    assert (cell.y, cell.source) == (25, "x")
    assert "L" in cell.marks
    # Ours has the rows and columns that this scale has.
    assert ours.x.names == ("16", "64", "1024", "2048")
    assert len(ours.y.names) == 4
    assert ours.points == [cell]
    (tmp_path / "empty").mkdir()
    (alone,) = content("li2022/2", tmp_path / "empty").panels
    assert alone.origin is Origin.PRINTED


def test_figure_6_is_calibration_at_each_rate():
    exponents = (-12, -8, -4, -2)
    found = computed.noise_by_rate(load("li2022/6"), Inputs("paper"), exponents=exponents)
    curve, rule = found.panels[0].series
    for point, k in zip(curve.points, exponents, strict=True):
        rate, steps = 2.0**k, 50 * 2**-k
        assert point.x == rate
        assert point.y == calibrate_noise(
            target_epsilon=3, delta=1e-5, sampling_rate=rate, steps=steps, accountant="rdp"
        )
        spent = epsilon_rdp(sampling_rate=rate, noise_multiplier=point.y, steps=steps, delta=1e-5)
        assert 2.99 < spent <= 3
    assert rule.points[-1].y == pytest.approx(curve.points[-1].y)
    assert rule.points[1].y == pytest.approx(rule.points[-1].y / math.sqrt(2**6))


# Inputs 1, 3, 5 and outputs 2, 4, 6 numbers a record.
THREE = (Layer(1, 1, 2, 0), Layer(1, 3, 4, 1), Layer(1, 5, 6, 2))


def test_peaks_by_hand():
    assert computed.peaks(THREE, [(0, 3)]) == [9 + 12]
    assert computed.peaks(THREE, computed.each(THREE)) == [1 + 2, 4 + 4, 9 + 6]
    assert computed.peaks(THREE, computed.boundaries(THREE, [1])) == [1 + 2, 9 + 10]


def test_the_backward_reaches_each_group_s_peak_at_its_first_layer():
    groups = computed.boundaries(THREE, [1])
    assert computed.backward(THREE, groups) == [9 + 6, 9 + 10, 1 + 2]
    layers = computed.vit(1024, 24)
    for groups in (computed.uniform(layers, 4), computed.each(layers), ((0, len(layers)),)):
        sizes = computed.backward(layers, groups)
        reached = [sizes[len(layers) - 1 - first] for first, _ in groups]
        assert reached == computed.peaks(layers, groups)


def test_groups_are_ordered_by_their_number(tmp_path):
    names = ["none", "per_layer", "uniform:6", "bk"]
    styles = {name: (1.0, 1.0 + i) for i, name in enumerate(names)}
    write_bench(tmp_path / "v.json", "vit-base", styles, batch=8)
    benches, damaged = read_benches([tmp_path])
    assert not damaged
    memory, throughput = content("bu2023/5", benches=benches).panels
    assert memory.x.names == ("M = 1 (bk)", "M = 6", "per_layer")
    assert [p.y for p in memory.series[0].points] == [4, 3, 2]
    assert memory.series[1].points[0].y == 1
    assert throughput.series[0].points[0].y == 4  # eight records in two seconds


def saved(folder, kind="runs"):
    """The files of a figure with everything that a figure may have."""
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
    about = Figure(name="demo/1", title="A title", source="Source", kind=kind)
    return save(about, Content((panel, heat), ("Said. " * 60,)), folder)


def test_equal_content_gives_equal_files(tmp_path):
    one, again = ([path.read_bytes() for path in saved(tmp_path / name)] for name in "ab")
    assert one == again
    table = one[2].decode().splitlines()
    assert table[0] == "panel,series,origin,x,y,deviation,label,marks,source"
    assert len(table) == 1 + 18 + 1 + 2 + 1 + 1
    assert "h,c,ours,a,1.0,,,," in table


def test_private_figures_are_for_their_owner(tmp_path):
    for path in saved(tmp_path, "private"):
        assert path.stat().st_mode & 0o077 == 0


GROUPS = ["embed", "block.0.value", "block.1.value", "head"]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "one"
    (folder / "private").mkdir(parents=True)
    with MetricsLog(folder / "private" / NORMS) as log:
        for step in range(0, 31, 5):
            log.append(norms_of(step, GROUPS, [torch.arange(160.0).view(40, 4) + step]))
    return folder


def test_norms_of_32_records_at_four_steps(run):
    figure = content("he2022/2", runs=(run,))
    assert [panel.title for panel in figure.panels] == [f"step {k}" for k in (1, 11, 21, 31)]
    first = figure.panels[0]
    assert (len(first.cells), len(first.cells[0])) == (32, 4)
    assert first.cells[2][1].y == 9
    assert len({panel.limits for panel in figure.panels}) == 1
    assert figure.caption[0] == WARNING
    assert figure.caption[1].startswith("Run one; 4 layers")


def test_histograms_count_every_record(run):
    assert load("he2022/2").private
    figure = content("he2022/4", runs=(run,))
    assert len(figure.panels) == 4 * 3
    outline, quantiles = figure.panels[0].series
    assert sum(point.y for point in outline.points) == 40
    assert [point.x for point in quantiles.points] == [39, 78, 117, 132.6]


def test_scores_stand_over_the_ratio_of_the_first_steps(tmp_path):
    one = planned("li2022/3b", **{"batch size": 512})
    for seed, score in ((1, 0.4), (2, 0.5)):
        folder = write_record(tmp_path / str(seed), one, seed, {"BLEU": score})
        (folder / "private").mkdir()
        with MetricsLog(folder / "private" / NORMS) as log:
            for step in range(40):
                # Ratios of 0.1 and 0.2 by turns; those behind the first 30 steps do not count.
                signal = seed * (1 + step % 2 if step < 30 else 99)
                log.append(norms_of(step, ["all"], [torch.ones(3, 1)], signal, 10))
    figure = content("li2022/3b", tmp_path)
    (series,) = figure.panels[0].series
    assert series.label == "batches of 512"
    assert [(point.x, point.y) for point in series.points] == [
        (pytest.approx(0.15), 40),
        (pytest.approx(0.30), 50),
    ]
    assert figure.caption[0] == WARNING


def test_every_list_belongs_to_a_figure():
    used = {one.name for figure in figures().values() for one in figure.tables if one.is_list}
    assert used == {f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml")}


def test_every_figure_with_data_is_there():
    numbers = {
        "li2022": "1 2 3a 3b 4 5 6 7 8 9",
        "he2022": "1 2 3 4 5 6 7 8 9",
        "bu2023": "1 2 3 4 5 6",
    }
    names = [f"{paper}/{number}" for paper, listed in numbers.items() for number in listed.split()]
    assert list(figures()) == names
    builders = {figure.build for figure in figures().values()}
    assert builders == {*BUILDERS, None}
    for figure in figures().values():
        assert (figure.build is None) == (figure.kind is FigureKind.NONE) == bool(figure.why)


def test_series_ask_for_columns_and_labels_that_their_tables_have():
    for figure in figures().values():
        tables = [one.load() for one in figure.tables]
        columns = {column.key for table in tables for column in table.columns}
        labels = {label for table in tables for label in table.label_names}
        for series in figure.series:
            assert series.column in columns, figure.name
            assert {*series.where} <= labels, figure.name
            assert series.x in {*POSITIONS, *labels}, figure.name
