"""The measurement of many records: stages that really run, and files that are gone on with."""

import csv
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from dpft.runs.checkpoint import MANIFEST

FILE = Path(__file__).parents[2] / "scripts" / "scale_records.py"
# Half a second of CPU time, and 80 MiB for as long as a few looks.
BURNS = """
import time
held = bytearray(80 << 20)
while time.process_time() < 0.5:
    pass
time.sleep(1.5)
"""
PASSES_ON = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURNS!r}], check=True)"


@pytest.fixture(scope="module")
def scale():
    spec = importlib.util.spec_from_file_location("scale_records", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_records"] = module
    spec.loader.exec_module(module)
    return module


def lines(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_fewer_rows_are_the_first_of_more_and_of_134_bytes(scale, tmp_path):
    few, many = tmp_path / "few.jsonl", tmp_path / "many.jsonl"
    scale.generate(few, 50)
    scale.generate(many, 5000)
    assert many.read_text().startswith(few.read_text())
    assert many.stat().st_size / 5000 == pytest.approx(134, abs=1)


def test_a_child_counts_with_its_process(scale):
    taken = scale.measured([sys.executable, "-c", PASSES_ON])
    assert taken.wall_s > 1.5
    assert taken.cpu_s > 0.5
    assert 0 <= taken.waited_s < taken.wall_s
    # The child's and, beside it, what two interpreters take.
    assert 80 < taken.pss_mib <= taken.rss_mib
    assert taken.rss_mib > 90
    assert taken.process_mib > 80


def test_a_process_that_is_far_enough_is_killed(scale):
    looks = iter([False, True])
    taken = scale.measured([sys.executable, "-c", "import time; time.sleep(60)"], looks.__next__)
    assert taken.wall_s < 30


@pytest.mark.parametrize("enough", [None, lambda: False])
def test_what_failed_is_no_measurement(scale, enough):
    with pytest.raises(SystemExit, match=r"ended with 3[\s\S]*no room"):
        scale.measured(
            [sys.executable, "-c", "print('no room', file=__import__('sys').stderr); exit(3)"],
            enough,
        )


@pytest.mark.slow
def test_the_stages_of_two_hundred_rows(scale, tmp_path, monkeypatch):
    out, work = tmp_path / "deep" / "records.csv", tmp_path / "work"
    command = ["measure", "--sizes", "200", "--rounds", "1", "--out", f"{out}", "--work", f"{work}"]
    scale.main([*command, "--keep"])
    found = lines(out)
    assert [row["stage"] for row in found] == ["check", "start", "resume"]
    for row in found:
        assert float(row["cpu_s"]) > 0.3
        assert float(row["process_mib"]) > 60
    run = work / "runs-200" / "scale"
    assert scale.checkpoints(run) >= 2
    # Killed when it is far enough, it may have had no time to take the oldest away.
    assert len(list(run.glob(f"checkpoints/*/{MANIFEST}"))) in (2, 3)

    # What stands in the file is not measured again, and what is left over is removed.
    def refused(*arguments):
        raise AssertionError(arguments)

    with monkeypatch.context() as patched:
        patched.setattr(scale, "measured", refused)
        scale.main(command)
    assert lines(out) == found
    assert not work.exists()

    if "DPFT_LONG" not in os.environ:
        return
    # A file that was cut off after the start: the run to resume is made again, unrecorded.
    rows = out.read_text().splitlines(keepends=True)
    out.write_text("".join(rows[:3]))
    scale.main(command)
    assert [row["stage"] for row in lines(out)] == ["check", "start", "resume"]
    assert lines(out)[:2] == found[:2]


def test_medians_are_tabled_and_drawn_beside_earlier_ones(scale, tmp_path):
    out = tmp_path / "records.csv"
    common = {"rows": 1000, "rss_mib": 1000, "pss_mib": 900, "process_mib": 800, "load": 1}
    for version, seconds in (("before", [36]), ("this", [5, 3, 11])):
        for number, value in enumerate(seconds, 1):
            for stage in scale.STAGES:
                row = {"version": version, "stage": stage, "round": number, "cpu_s": value}
                # Of an earlier version CPU seconds and memory are all that is known.
                row |= {"wall_s": 9, "waited_s": 2} if version == "this" else {}
                scale.append(out, {**common, **row})
    told = scale.table(out)
    assert "| this | 1,000 | check | 5 | 9 | 7 | 1,049 | 944 | 839 | 3 |" in told
    assert "| before | 1,000 | resume | 36 |  |  | 1,049 | 944 | 839 | 1 |" in told
    scale.plot(out)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
