"""The worker measures our styles and peers, and turns every failure into a result."""

import pytest
import torch

from dpft.config.errors import DpftError
from dpft.privacy.verification.checker import Schedule
from dpft.reproduce.bench import worker
from dpft.reproduce.bench.catalog import Variant
from dpft.reproduce.bench.measure import WorkerProcess
from dpft.reproduce.bench.worker import CpuMeter

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


@pytest.mark.parametrize(
    ("kind", "steps", "time_only", "told_apart"),
    [("measure", 1, False, True), ("measure", 3, True, False), ("fits", 1, False, False)],
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
    timed = {"fits": 0, "measure": steps if time_only else max(steps, 13)}[kind]
    assert set(checked) == {2}
    assert sizes.count(3) == 2 + timed


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

    monkeypatch.setattr(worker, "fits", fail)
    result = work("bk", kind="fits")
    assert result["status"] == status
    assert result["message"].endswith(message)


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
    session = WorkerProcess({"kind": "step", "threads": "two"})
    assert not session.ready()
    assert session.step() is None
    result = session.finish()
    assert result["status"] == "died"
    assert "ended with status 1" in result["message"]
