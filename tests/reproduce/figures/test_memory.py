"""Fact 6.1, by hand and for the papers' models."""

import pytest

from dpft.reproduce.figures import memory
from dpft.reproduce.figures.memory import Layer, relative_peak
from tests.reproduce.figures.example import content

# Inputs 1, 3, 5 and outputs 2, 4, 6 numbers a record.
THREE = (Layer(1, 1, 2, 0), Layer(1, 3, 4, 1), Layer(1, 5, 6, 2))


def test_peaks_by_hand():
    assert memory.peaks(THREE, [(0, 3)]) == [9 + 12]
    assert memory.peaks(THREE, memory.each(THREE)) == [1 + 2, 4 + 4, 9 + 6]
    assert memory.peaks(THREE, memory.boundaries(THREE, [1])) == [1 + 2, 9 + 10]


def test_the_backward_reaches_each_group_s_peak_at_its_first_layer():
    groups = memory.boundaries(THREE, [1])
    assert memory.backward(THREE, groups) == [9 + 6, 9 + 10, 1 + 2]
    layers = memory.vit(1024, 24)
    for groups in (memory.uniform(layers, 4), memory.each(layers), ((0, len(layers)),)):
        sizes = memory.backward(layers, groups)
        reached = [sizes[len(layers) - 1 - first] for first, _ in groups]
        assert reached == memory.peaks(layers, groups)


def test_one_group_a_layer_keeps_what_non_private_training_keeps():
    for layers in (THREE, memory.vit(384, 12)):
        whole = ((0, len(layers)),)
        assert memory.backward(layers, memory.each(layers)) == memory.backward(
            layers, whole, private=False
        )


def test_layers_are_as_many_as_printed():
    assert len(memory.vit(1024, 24)) == 147
    assert len(memory.vit(384, 12)) == 75
    # 103 with the three layers of its head.
    assert len(memory.encoder(768, 12)) == 100


def test_more_uniform_groups_have_lower_peaks_and_the_last_is_highest():
    layers = memory.vit(1024, 24)
    tops = [memory.peak(layers, memory.uniform(layers, m)) for m in (1, 2, 3, 4, 6)]
    assert tops == sorted(tops, reverse=True)
    assert tops[-1] > memory.peak(layers, memory.each(layers)) == memory.peak(layers, None)
    four = memory.peaks(layers, memory.uniform(layers, 4))
    assert four == sorted(four)
    with pytest.raises(ValueError, match="got 5 groups of 24 blocks"):
        memory.uniform(layers, 5)


def test_the_profile_has_both_halves_and_its_peaks_in_the_caption():
    figure = content("bu2023/4")
    *styles, turn = figure.panels[0].series
    assert [len(series.points) for series in styles] == [294] * 4
    layers = memory.vit(1024, 24)
    top = max(point.y for point in styles[0].points)
    assert top == pytest.approx(32 * 4 * memory.peak(layers, ((0, 147),)) / 1e9)
    assert f"{top:.2f} GB" in figure.caption[0]
    assert turn.points[0].x == 147.5


def test_printed_groupings_have_a_peak():
    whole = relative_peak("ViT-large", "all-layer", "1")
    two, uneven = (relative_peak("ViT-large", c, "2") for c in ("uniform", "non-uniform"))
    assert whole > uneven > two > 1
    assert relative_peak("RoBERTa-base", "param-wise", "203") == 1
    assert relative_peak("RoBERTa-base", "by device", "2") is None
