"""Points, heat maps and trade-offs from records written by hand."""

import pytest

from dpft.reproduce.figures.content import Origin
from tests.reproduce.figures.example import content, planned
from tests.reproduce.tables.example import write_record


def test_scores_stand_at_their_setting_with_their_marks(tmp_path):
    for share, score in ((1, 0.8), (0.01, 0.7)):
        one = planned("he2022/6", share=share, epsilon=3)
        write_record(tmp_path / f"s{share}", one, 0, {"accuracy": score}, "dev")
    figure = content("he2022/6", tmp_path)
    (panel,) = figure.panels
    (series,) = panel.series
    assert series.label == "epsilon 3"
    assert [(p.x, p.y) for p in series.points] == [
        (0.01, pytest.approx(70)),
        (1, pytest.approx(80)),
    ]
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
