"""Figures from benchmarks written by hand."""

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.figures.benchmarks import group_count
from tests.reproduce.figures import example
from tests.reproduce.figures.example import write_bench

TIMED = {"none": (1.0, 1.0), "ghost": (1.25, 1.1), "per_layer": (1.0, 0.9)}


def content(name, folder):
    benches, damaged = read_benches([folder])
    assert not damaged
    return example.content(name, benches=benches)


def test_models_of_one_setting_share_a_panel(tmp_path):
    write_bench(tmp_path / "a.json", "gpt2", TIMED)
    write_bench(tmp_path / "b.json", "gpt2-medium", TIMED)
    write_bench(tmp_path / "c.json", "gpt2", TIMED, hardware="GPU Y")
    memory, throughput = content("li2022/4", tmp_path).panels
    assert memory.x.names == ("gpt2", "gpt2-medium")
    assert [s.label for s in throughput.series] == ["non-private", "ghost clipping"]
    assert [p.y for p in throughput.series[1].points] == [0.8, 0.8]
    caption = " ".join(content("li2022/4", tmp_path).caption)
    assert "GPU X" in caption
    assert "1 other settings" in caption
    other = content("he2022/9", tmp_path)
    assert "GPU Y" in other.caption[0]
    assert {s.label for s in other.panels[0].series} >= {"per layer"}


def test_a_second_device_is_another_processor_and_no_other_batch(tmp_path):
    write_bench(tmp_path / "a.json", "gpt2", TIMED, hardware="CPU X, 2 threads")
    write_bench(tmp_path / "b.json", "gpt2", TIMED, hardware="CPU X, 2 threads", batch=16)
    write_bench(tmp_path / "c.json", "gpt2", TIMED, hardware="CPU X, 1 thread")
    with pytest.raises(ConfigError, match=r"on a second device, and those .* are of 1 devices"):
        content("he2022/9", tmp_path)


def test_the_setting_with_the_figures_own_styles_is_shown(tmp_path):
    others = {"none": (1.0, 1.0), "bk": (1.0, 1.0)}
    for model in ("gpt2", "gpt2-medium"):
        write_bench(tmp_path / f"{model}.json", model, others, batch=1)
        write_bench(tmp_path / f"{model}-g.json", model, others | {"ghost": (2, 2)}, batch=2)
    write_bench(tmp_path / "only" / "x.json", "gpt2", others, batch=8)
    with pytest.raises(ConfigError, match="needs benchmarks"):
        content("he2022/1", tmp_path / "only")
    write_bench(tmp_path / "b.json", "gpt2", TIMED)
    labels = {s.label for s in content("he2022/1", tmp_path).panels[0].series}
    assert labels == {"non-private", "per layer", "ghost clipping"}


def test_an_untied_peer_is_relative_to_an_untied_baseline(tmp_path):
    found = {"none": (40, 100.0), "none (untied)": (38, 80.0), "opacus (untied)": (10, 40.0)}
    write_bench(tmp_path / "a.json", "gpt2", {}, largest=found)
    one = content("li2022/4", tmp_path)
    (opacus,) = [s for s in one.panels[1].series if s.label == "Opacus"]
    assert opacus.points[0].y == 0.5
    assert any("untied" in line for line in one.caption)
    del found["none (untied)"]
    write_bench(tmp_path / "a.json", "gpt2", {}, largest=found)
    assert [s.label for s in content("li2022/4", tmp_path).panels[1].series] == ["non-private"]


def test_files_of_one_setting_stand_together_each_with_its_own_baseline(tmp_path):
    write_bench(tmp_path / "a.json", "gpt2", TIMED | {"materialised": (2.0, 2.0)})
    peers = {"none": (1.0, 1.0), "none (untied)": (1.0, 1.0), "opacus (untied)": (4.0, 3.0)}
    write_bench(tmp_path / "b.json", "gpt2", peers | {"bk": (1.6, 1.0), "ghost": (5.0, 5.0)})
    throughput = content("li2022/4", tmp_path).panels[1]
    found = {s.label: [p.y for p in s.points] for s in throughput.series}
    assert found["Opacus"] == [0.25]
    assert found["gradients of records formed"] == [0.5]
    assert len(found["ghost clipping"]) == len(found["non-private"]) == 1


def test_largest_batches_come_first(tmp_path):
    write_bench(tmp_path / "a.json", "gpt2", TIMED)
    found = {"none": (40, 100.0), "ghost": (30, 90.0)}
    write_bench(tmp_path / "a-largest.json", "gpt2", {}, largest=found)
    batch, throughput = content("he2022/1", tmp_path).panels
    assert [s.points[0].y for s in batch.series] == [40, 30]
    assert [s.points[0].y for s in throughput.series] == [1, 0.9]


def test_groups_are_ordered_by_their_number(tmp_path):
    styles = {
        name: (1.0, 1.0 + i) for i, name in enumerate(["none", "per_layer", "uniform:6", "bk"])
    }
    write_bench(tmp_path / "v.json", "vit-base", styles, batch=8)
    memory, throughput = content("bu2023/5", tmp_path).panels
    assert memory.x.names == ("M = 1 (bk)", "M = 6", "per_layer")
    assert [p.y for p in memory.series[0].points] == [4, 3, 2]
    assert memory.series[1].points[0].y == 1
    assert throughput.series[0].points[0].y == 4  # eight records in two seconds
    assert group_count("none") is None


def test_without_benchmarks_the_command_is_named(tmp_path):
    for name in ("li2022/4", "he2022/1", "he2022/9", "bu2023/5"):
        with pytest.raises(ConfigError, match="type dpft bench --model"):
            content(name, tmp_path)


def test_the_shipped_benchmark_is_read():
    from pathlib import Path

    folder = Path(__file__).parents[3] / "results" / "bench"
    found, damaged = read_benches([folder])
    assert not damaged
    assert any(bench.model == "gpt2" and "bk" in bench.styles for bench in found)
