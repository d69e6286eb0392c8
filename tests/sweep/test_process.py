"""The process that runs a sweep's jobs is told what to do where nobody else can read it."""

from pathlib import Path

from dpft.sweep.process import Multirun


def test_what_a_child_is_told_stands_neither_in_its_arguments_nor_in_its_environment(tmp_path):
    log = tmp_path / "log"
    with Multirun(["seeed=7654321"], log) as child:
        process = Path("/proc", str(child._process.pid))
        # The kernel fills both in a moment after the program was started.
        while not (process / "environ").read_bytes() and child.wait(0.01) is None:
            pass
        shown = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        assert child.wait(60) == 2, log.read_text()
    assert b"dpft" in shown
    assert b"7654321" not in shown
    assert "unknown setting seeed" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600  # an error may quote the data
