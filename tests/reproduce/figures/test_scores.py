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


def test_rungs_of_the_ladder_stand_at_their_size(tmp_path):
    for model, score in (("GPT-2-medium", 0.4), ("GPT-2-large", 0.5)):
        for seed in (1, 2):
            one = planned("li2022/1", 2, model=model)
            write_record(tmp_path / f"{model}{seed}", one, seed, {"BLEU": score + seed / 100})
    (panel,) = (p for p in content("li2022/1", tmp_path).panels if p.title == "E2E")
    (ours,) = (series for series in panel.series if series.origin is Origin.OURS)
    # Without embeddings, in millions.
    assert [p.x for p in ours.points] == pytest.approx([0.335, 2.224], abs=0.001)
    assert [p.y for p in ours.points] == pytest.approx([41.5, 51.5])
    assert ours.points[0].error == pytest.approx(0.7071, abs=1e-4)
    assert [p.label for p in ours.points] == ["gpt2-0.8m", "gpt2-3m"]


def test_epochs_are_those_that_ran(tmp_path):
    one = planned("he2022/3", clipping="flat", noise="without noise", epochs=150)
    write_record(tmp_path / "x", one, 0, {"accuracy": 0.5})
    (panel,) = content("he2022/3", tmp_path).panels
    assert panel.title == "without noise"
    assert panel.series[0].points[0].x == 9


def test_wall_time_is_recorded_time_and_its_mean_over_seeds(tmp_path):
    one = planned("he2022/8", clipping="ghost", epochs=2)
    metrics = {"BLEU": 0.5, "ROUGE_L": 0.6}
    for seed, seconds in ((0, 60.0), (1, 120.0)):
        write_record(tmp_path / f"s{seed}", one, seed, metrics, training={"seconds": seconds})
    bleu, rouge = content("he2022/8", tmp_path).panels
    assert (bleu.series[0].points[0].x, bleu.series[0].points[0].y) == (1.5, 50)
    assert rouge.series[0].points[0].y == 60


def test_times_of_several_machines_are_warned_of(tmp_path):
    for number, cpu in enumerate(("CPU X", "CPU Y")):
        one = planned("he2022/8", clipping="ghost", epochs=(2, 4)[number])
        more = {"training": {"seconds": 90.0}, "environment": {"cpu": cpu, "threads": 2}}
        write_record(tmp_path / cpu, one, 0, {"BLEU": 0.5, "ROUGE_L": 0.6}, **more)
        caption = content("he2022/8", tmp_path).caption
        assert any("of CPU X, 2 threads" in line for line in caption)
        assert any(line.startswith("WARNING: times of 2") for line in caption) is (number == 1)
    # What the list leaves open stands beside it.
    assert any("A run scores its last weights only" in line for line in caption)


def test_a_mean_names_every_run(tmp_path):
    one = planned("he2022/6", share=1, epsilon=3)
    for seed in (0, 1):
        write_record(tmp_path / f"s{seed}", one, seed, {"accuracy": 0.8}, "dev")
    (panel,) = content("he2022/6", tmp_path).panels
    assert panel.series[0].points[0].source == "s0; s1"


def test_maps_of_one_scale_share_their_colours(tmp_path):
    place = {"learning rate": 0.001, "batch size": 1024}
    for scale, alike in (("paper", True), ("laptop", False)):
        one = planned("li2022/2", scale=scale, **place)
        write_record(tmp_path / scale, one, 0, {"BLEU": 0.95})
        found = content("li2022/2", tmp_path, scale)
        printed, ours = found.panels
        assert (printed.limits == ours.limits == (2.12, 95)) is alike
        assert any("different ranges" in line for line in found.caption) is not alike


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


def test_sizes_by_hand():
    assert non_embedding("tiny") == 2 * (12 * 128**2 + 13 * 128) / 1e6
    assert non_embedding("somebody-s-own") is None


def test_label_words_stand_at_their_untrained_accuracy(tmp_path):
    for training, score in (("zero-shot", 0.6), ("epsilon 3", 0.9)):
        one = planned("li2022/7", scale="paper", words="good / bad", training=training)
        write_record(tmp_path / training, one, 0, {"accuracy": score}, "dev")
    first = planned("li2022/7", scale="paper", words="first token")
    write_record(tmp_path / "first", first, 0, {"accuracy": 0.8}, "dev")
    (panel,) = content("li2022/7", tmp_path, "paper").panels
    varied, level = panel.series
    assert (varied.points[0].x, varied.points[0].y) == (60, 90)
    assert (level.look, level.points[0].y) == ("level", 80)


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


def test_tradeoffs_have_every_printed_style(tmp_path):
    images, text = content("bu2023/1", tmp_path).panels
    large = next(s for s in images.series if s.label == "ViT-large")
    assert [p.label for p in large.points] == ["1", "2", "2", "3", "4", "6", "147", "294"]
    assert [p.x for p in large.points] == sorted((p.x for p in large.points), reverse=True)
    assert {s.label for s in text.series} == {"RoBERTa-base", "RoBERTa-large"}
    cifar, _ = content("bu2023/6", tmp_path).panels
    (uniform,) = [s for s in cifar.series if s.label.startswith("uniform")]
    assert (uniform.points[0].x, uniform.points[0].y) == (21.89, 88.36)
    assert len(content("bu2023/3", tmp_path).panels) == 2
