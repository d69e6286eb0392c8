"""The worker measures our styles and peers, and turns every failure into a result."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from dpft.cli import bench as verb
from dpft.config.errors import DpftError, ModelError
from dpft.privacy.clipping.checks.checker import Schedule
from dpft.reproduce.bench import worker
from dpft.reproduce.bench.catalog import Variant
from dpft.reproduce.bench.measure import WorkerProcess
from dpft.reproduce.bench.peers import swap_conv1d
from dpft.reproduce.bench.worker import CpuMeter
from dpft.reproduce.bench.workloads import build, style_options

from .fakes import settings

SMALL = {"batch": 2, "length": 6, "steps": 1}


@pytest.fixture(autouse=True)
def _threads():
    """The worker sets them for its process, which here is the test's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def work(name, kind="measure", peer=False, untied=False, **typed):
    made = settings(**SMALL, **typed)
    return worker.main(made.job(kind, Variant(name, peer=peer, untied=untied)))


def test_exact_flat_styles_and_peers_leave_gradients_of_one_norm():
    pytest.importorskip("opacus")
    norms = [work(name, untied=True, dtype="float64")["gradient_norm"] for name in ("bk", "ghost")]
    for peer in ("opacus", "opacus-ghost", "opacus-ghost-linear"):
        result = work(peer, peer=True, untied=True, dtype="float64")
        assert result["status"] == "ok", result
        norms.append(result["gradient_norm"])
    # Opacus divides by the norm plus 1e-6, and so clips to a little less.
    assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-5)
    assert 0 < norms[0] <= 2 * 0.1


@pytest.mark.parametrize("told_apart", [True, False])
@pytest.mark.parametrize(
    ("kind", "steps", "time_only"),
    [("measure", 1, False), ("measure", 60, False), ("measure", 3, True), ("fits", 1, False)],
)
def test_no_full_batch_is_one_that_is_checked(monkeypatch, kind, steps, time_only, told_apart):
    """Nor where some gradient is always zero, so that rules are looked at more often."""
    sizes, checked = [], []
    due, kept = Schedule.due, Schedule.checked

    def spy(self, losses, *more):
        sizes.append(len(losses))
        checks = due(self, losses, *more)
        checked.extend([len(losses)] * checks)
        return checks

    monkeypatch.setattr(Schedule, "due", spy)
    monkeypatch.setattr(Schedule, "checked", lambda self, _, finite: kept(self, told_apart, finite))
    made = settings(batch=3, length=10, steps=steps, time_only=time_only)
    assert worker.main(made.job(kind, Variant("bk")))["status"] == "ok"
    timed, after = (0, 0) if kind == "fits" else (max(steps, 13), worker._CHECKED_STEPS)
    if time_only:
        timed, after = steps, 0
    assert set(checked[: len(checked) - after]) == {2}
    assert checked[len(checked) - after :] == [3] * after  # whose memory is a whole run's
    assert sizes.count(3) == 2 + timed + after


# One of each kind: their clippers have tests of their own.
SOME = ("none", "bk", "ghost", "uniform", "per_layer_adaptive")


@pytest.mark.parametrize("style", SOME)
def test_every_style_has_times_and_memory(style):
    result = json.loads(json.dumps(work(style)))
    assert result["status"] == "ok"
    assert len(result["seconds"]) == 1
    assert result["seconds"][0] > 0
    assert result["whole_peak_bytes"] >= result["peak_bytes"] > 0
    assert result["memory"]


@pytest.mark.parametrize(
    ("name", "blocks", "options"),
    [
        *(("uniform", 12, {"count": 4}), ("uniform", 2, {"count": 2})),
        *(("uniform:6", 12, {"count": 6}), ("two_group", 12, {"boundary": 6})),
        *(("two_group:3", 12, {"boundary": 3}), ("bk", 12, {})),
    ],
)
def test_styles_with_numbers(name, blocks, options):
    assert style_options(name, blocks) == (name.partition(":")[0], options)


def test_a_limit_of_memory_is_a_share_of_the_gpus(monkeypatch):
    shares = []
    whole = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    for memory in (24.0, 100.0, None):
        assert work("bk", kind="fits", memory=memory)["status"] == "ok"
    assert shares == [0.3, 1.0]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nmany details"), "oom", "out of memory."),
        (ValueError("\nfirst\nsecond"), "refused", "ValueError: first"),
        (DpftError("a sentence"), "refused", "a sentence"),
        (ValueError(), "refused", "ValueError: no message"),
    ],
)
def test_failures_are_results(monkeypatch, error, status, message):
    def fail(job):
        raise error

    monkeypatch.setitem(worker._KINDS, "fits", fail)
    result = work("bk", kind="fits")
    assert result["status"] == status
    assert result["message"].endswith(message)


def test_conv1d_becomes_an_equal_linear():
    pytest.importorskip("opacus")
    workload = build("tiny", length=6, untied=True, seed=0, device="cpu", dtype=torch.float32)
    inputs = workload.inputs(2)
    before = workload.losses(workload.model, inputs)
    swap_conv1d(workload.model)
    torch.testing.assert_close(workload.losses(workload.model, inputs), before)
    with pytest.raises(ModelError, match="without -linear"):
        swap_conv1d(workload.model)


def test_missing_peers_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setattr("dpft.reproduce.bench.catalog.find_spec", lambda name: None)
    result = work("opacus", peer=True, untied=True)
    assert result["status"] == "refused"
    assert "pip install 'dpft[peers]'" in result["message"]
    with pytest.raises(DpftError, match="not installed: type pip install"):
        verb.main(threads=1, peers="opacus")


def test_the_peak_forgets_what_came_before_the_reset():
    meter = CpuMeter()
    block = bytearray(200 << 20)
    del block
    meter.reset()
    if meter.method != CpuMeter.method:
        pytest.skip("this system does not let a process reset its peak")
    low = meter.peak()
    block = bytearray(100 << 20)
    assert meter.peak() - low > 90 << 20
    del block


def test_a_meter_that_cannot_be_reset_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("dpft.runs.memory._CLEAR_REFS", tmp_path / "missing" / "file")
    meter = CpuMeter()
    meter.reset()
    assert meter.peak() > 0
    assert "verification included" in meter.method


def test_two_sessions_take_steps_in_turn():
    """Real processes: each is asked for its steps, and reports those and no others."""
    made = settings(**SMALL)
    sessions = [WorkerProcess(made.job("measure", Variant(name))) for name in ("none", "bk")]
    assert all(session.ready() for session in sessions)
    times = [[session.step() for session in sessions] for _ in range(3)]
    for session, seconds in zip(sessions, zip(*times, strict=True), strict=True):
        result = session.finish()
        assert result["status"] == "ok"
        assert tuple(result["seconds"]) == seconds


def test_a_worker_that_leaves_no_result_died():
    session = WorkerProcess({"threads": "two"})
    assert not session.ready()
    assert session.step() is None
    result = session.finish()
    assert result["status"] == "died"
    assert "ended with status 1" in result["message"]
