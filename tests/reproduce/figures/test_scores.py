"""Points, heat maps and trade-offs from records written by hand."""

import pytest

from dpft.reproduce.figures.content import Origin
from dpft.reproduce.figures.scores import non_embedding
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


def test_printed_scores_are_there_at_either_scale(tmp_path):
    for scale in ("paper", "laptop"):
        figure = content("li2022/1", tmp_path, scale)
        mnli, e2e = figure.panels
        points = {
            p.label: (p.x, p.y) for s in mnli.series for p in s.points if s.label == "epsilon 3"
        }
        assert points["RoBERTa-base"] == (pytest.approx(85.05, abs=0.05), 82.45)
        assert points["RoBERTa-large"] == (pytest.approx(302.3, abs=0.1), 86.43)
        assert e2e.series[0].points[0].y == 61.519
    one = planned("li2022/1", place=1, model="GPT-2", epsilon=3)
    write_record(tmp_path / "x", one, 0, {"BLEU": 0.5})
    e2e = content("li2022/1", tmp_path).panels[1]
    (ours,) = [s for s in e2e.series if s.origin is Origin.OURS]
    assert ours.points[0].x == non_embedding("tiny")


def test_heat_maps_lie_beside_each_other(tmp_path):
    one = planned("li2022/2", **{"learning rate": 0.001, "batch size": 1024})
    write_record(tmp_path / "x", one, 0, {"BLEU": 0.25})
    printed, ours = content("li2022/2", tmp_path).panels
    assert printed.cells[0][0].y == 2.12
    assert printed.lines == ((2.5,), (2.5,))
    # The laptop's rate stands on our axis, beside that of the row.
    assert (printed.y.names[0], printed.x.label) == ("0.001", "batch size (inferred)")
    place = (ours.y.names.index("0.004 for 0.001"), ours.x.names.index("1024"))
    cell = ours.cells[place[0]][place[1]]
    assert (cell.y, cell.source) == (25, "x")
    assert "L" in cell.marks
    # Ours has the rows and columns that this scale has, divided where the paper's are.
    assert ours.x.names == ("16", "64", "1024", "2048")
    assert (len(ours.y.names), ours.lines) == (4, ((1.5,), (1.5,)))
    assert ours.points == [cell]
    (tmp_path / "empty").mkdir()
    (alone,) = content("li2022/2", tmp_path / "empty").panels
    assert alone.origin is Origin.PRINTED
