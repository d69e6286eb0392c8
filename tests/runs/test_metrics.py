import json
from pathlib import Path

from dpft.runs import MetricsLog


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_log_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(5):
            log.append(step, loss=1.0)
    with MetricsLog(path, resume_step=3) as log:
        log.append(3, loss=1.0)
    assert steps(path) == [0, 1, 2, 3]


def test_numbers_that_json_lacks_are_spelled(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.append(0, loss=float("nan"), norms=[float("inf"), 1.0], by={"a": -float("inf")})
    expected = {"step": 0, "loss": "nan", "norms": ["inf", 1.0], "by": {"a": "-inf"}}
    assert json.loads(path.read_text()) == expected
