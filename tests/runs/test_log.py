"""Logs survive kills, power cuts and full disks, and say where they were damaged otherwise."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dpft.config.errors import LogError
from dpft.runs import NORMS, MetricsLog, norms_of, read_norms
from dpft.runs.identity import opened, sealed
from dpft.runs.log import Log, read_log

REMEDY = "mend it"


def entries(path: Path) -> list[int]:
    return [entry["n"] for entry in read_log(path, REMEDY)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Log(tmp_path / "log.jsonl", REMEDY) as log:
        for n in range(3):
            log.append({"n": n, "text": "x" * 20})
    return tmp_path / "log.jsonl"


def test_a_last_line_that_lost_blocks_to_a_power_cut_is_cut_off(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:5] + b"\0" * 10 + lines[2][-2:])
    assert entries(path) == [0, 1]
    Log(path, REMEDY).close()
    assert path.read_bytes() == b"".join(lines[:2])


@pytest.mark.parametrize(("line", "place"), [("nonsense", 0), ("[1]", 1), ('{"n": NaN}', 3)])
def test_damage_elsewhere_is_an_error_by_line_and_nothing_is_cut(
    path: Path, line: str, place: int
) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:place], f"{line}\n", *lines[place:]]))
    damaged = path.read_bytes()
    for use in (lambda: read_log(path, REMEDY), lambda: Log(path, REMEDY)):
        with pytest.raises(LogError, match=rf"log.jsonl, line {place + 1}: .*mend it"):
            use()
    assert path.read_bytes() == damaged


def test_several_writers_lose_nothing_and_mend_what_a_dead_one_left(path: Path) -> None:
    def write(writer: int) -> None:
        for n in range(20):
            with Log(path, REMEDY) as log:
                log.append({"n": 100 * writer + n})

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(1, 5)))
    written = (100 * w + n for w in range(1, 5) for n in range(20))
    assert sorted(entries(path)) == [0, 1, 2, *written]
    with Log(path, REMEDY) as log:
        with path.open("ab") as other:
            other.write(b'{"n": 1')
        log.append({"n": 5})
    assert entries(path)[-1] == 5


def test_no_log_is_written_through_a_link(path: Path) -> None:
    mine = path.rename(path.with_name("mine"))
    path.symlink_to(mine)
    with pytest.raises(LogError, match="could not write"):
        Log(path, REMEDY)
    assert len(json.loads(mine.read_bytes().splitlines()[2])) == 2


def test_resumed_metrics_have_each_step_once_and_spell_what_json_lacks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(5):
            log.append({"step": step, "loss": 1.0})
    with MetricsLog(path, resume_step=3) as log:
        wild = {"loss": math.nan, "norms": [math.inf, 1.0], "by": {"a": -math.inf}}
        log.append({"step": 3, **wild})
    found = read_log(path, REMEDY)
    assert [entry["step"] for entry in found] == [0, 1, 2, 3]
    assert found[3] == {"step": 3, "loss": "nan", "norms": ["inf", 1.0], "by": {"a": "-inf"}}


def test_a_sealed_body_is_read_as_it_was_written_or_not_at_all() -> None:
    body = {"step": 3, "state": {"thresholds": [0.1, 1e-300], "bound": math.inf, "name": "ü"}}
    whole = json.loads(json.dumps(sealed(body)))
    assert opened(whole) == body
    for change in ({"step": 4}, {"step": None}, {"more": 1}, {"sha256": "0" * 64}):
        with pytest.raises(ValueError, match="does not match its checksum"):
            opened(whole | change)
    for held in (body, [1], "text", None):
        with pytest.raises(ValueError, match=r"has no checksum|expected a mapping"):
            opened(held)


def test_norms_are_read_as_they_were_written_and_again_from_where_a_run_goes_on(
    tmp_path: Path,
) -> None:
    with MetricsLog(tmp_path / NORMS) as log:
        for step in (0, 2, 4):
            norms = [torch.full((1, 2), float(step)), torch.full((2, 2), 0.1234567)]
            log.append(norms_of(step, ["a", "b"], norms, 3, 4))
    with MetricsLog(tmp_path / NORMS, resume_step=3) as log:
        log.append(norms_of(4, ["a", "b"], [torch.tensor([[7.0, 8.0]])]))
    found = read_norms(tmp_path / NORMS)
    assert [(one.step, len(one.values)) for one in found] == [(0, 3), (2, 3), (4, 1)]
    assert found[0].values[1] == (0.123457, 0.123457)
    assert found[2].values == ((7.0, 8.0),)
    assert [(one.signal, one.noise) for one in found[1:]] == [(3, 4), (None, None)]
