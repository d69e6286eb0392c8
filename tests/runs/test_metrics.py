import errno
import io
import json
import os
import stat
from pathlib import Path

import pytest

from dpft.runs import MetricsLog, RunError


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_log_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(5):
            log.append(step, loss=1.0)
    with MetricsLog(path, resume_step=3) as log:
        log.append(3, loss=1.0)
        log.sync()
    assert steps(path) == [0, 1, 2, 3]


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(0, loss=1.0)
        log.append(1, loss=2.0)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        MetricsLog(path, resume_step=9).close()
        assert steps(path) == [0] * (size >= len(whole) // 2)


def test_numbers_that_json_lacks_are_spelled(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(0, loss=float("nan"), norms=[float("inf"), 1.0], by={"a": -float("inf")})
    expected = {"step": 0, "loss": "nan", "norms": ["inf", 1.0], "by": {"a": "-inf"}}
    assert json.loads(path.read_text()) == expected


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "metrics.jsonl").close()
    assert stat.S_IMODE((tmp_path / "metrics.jsonl").stat().st_mode) == 0o600


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullFile(io.RawIOBase):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.append(0, loss=1.0)
        with monkeypatch.context() as patch:
            patch.setattr(log, "_file", FullFile())
            with pytest.raises(RunError, match=r"metrics of step 1 .*No space left.*free some"):
                log.append(1, loss=1.0)
