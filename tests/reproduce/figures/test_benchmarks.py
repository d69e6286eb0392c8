"""Figures from benchmarks written by hand."""

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
