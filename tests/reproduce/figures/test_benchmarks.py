"""Figures from benchmarks written by hand."""

from dpft.reproduce.bench.documents import read_benches
from tests.reproduce.figures.example import content, write_bench


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
