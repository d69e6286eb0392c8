"""Figures of what a run keeps to itself."""

import pytest
import torch

from dpft.reproduce.figures.catalog import load
from dpft.reproduce.figures.private import WARNING
from dpft.runs.log import NORMS, MetricsLog, norms_of
from tests.reproduce.figures import example
from tests.reproduce.tables.example import write_record

GROUPS = ["embed", "block.0.value", "block.1.value", "head"]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "one"
    (folder / "private").mkdir(parents=True)
    with MetricsLog(folder / "private" / NORMS) as log:
        for step in range(0, 31, 5):
            norms = [torch.arange(160.0).view(40, 4) + step]
            log.append(norms_of(step, GROUPS, norms))
    return folder


def content(name, *runs):
    assert load(name).private
    return example.content(name, runs=runs)


def test_norms_of_32_records_at_four_steps(run):
    figure = content("he2022/2", run)
    assert [panel.title for panel in figure.panels] == [f"step {k}" for k in (1, 11, 21, 31)]
    first = figure.panels[0]
    assert (len(first.cells), len(first.cells[0])) == (32, 4)
    assert first.cells[2][1].y == 9
    assert len({panel.limits for panel in figure.panels}) == 1
    assert figure.caption[0] == WARNING
    assert figure.caption[1].startswith("Run one; 4 layers")


def test_histograms_count_every_record(run):
    figure = content("he2022/4", run)
    assert len(figure.panels) == 4 * 3
    outline, quantiles = figure.panels[0].series
    assert sum(point.y for point in outline.points) == 40
    assert [point.x for point in quantiles.points] == [39, 78, 117, 132.6]


def test_scores_stand_over_the_ratio_of_the_first_steps(tmp_path):
    planned = example.planned("li2022/3b", **{"batch size": 512})
    for seed, score in ((1, 0.4), (2, 0.5)):
        folder = write_record(tmp_path / str(seed), planned, seed, {"BLEU": score})
        (folder / "private").mkdir()
        with MetricsLog(folder / "private" / NORMS) as log:
            for step in range(40):
                # Ratios of 0.1 and 0.2 by turns; those behind the first 30 steps do not count.
                signal = seed * (1 + step % 2 if step < 30 else 99)
                log.append(norms_of(step, ["all"], [torch.ones(3, 1)], signal, 10))
    figure = example.content("li2022/3b", tmp_path)
    (series,) = figure.panels[0].series
    assert series.label == "batches of 512"
    assert [(point.x, point.y) for point in series.points] == [
        (pytest.approx(0.15), 40),
        (pytest.approx(0.30), 50),
    ]
    assert figure.caption[0] == WARNING
