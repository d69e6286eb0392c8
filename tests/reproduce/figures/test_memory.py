"""Fact 6.1, by hand and for the papers' models."""

from dpft.reproduce.figures import computed as memory
from dpft.reproduce.figures.computed import Layer

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
