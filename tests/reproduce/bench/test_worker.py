"""The worker measures our styles and peers, and turns every failure into a result."""

import pytest
import torch

from dpft.config.errors import DpftError
from dpft.privacy.verification.checker import Schedule
from dpft.reproduce.bench import worker
from dpft.reproduce.bench.choices import MODELS
from dpft.reproduce.bench.measure import WorkerProcess
from dpft.reproduce.bench.workloads import build, losses
from tests.reproduce.bench.fakes import settings

SMALL = {"batch": 2, "length": 6, "steps": 1}


@pytest.fixture(autouse=True)
def _threads():
    """The worker sets them for its process, which here is the test's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def work(name, **typed):
    return worker.main(settings(**SMALL, **typed).job("measure", name))


def test_exact_flat_styles_and_peers_leave_gradients_of_one_norm():
    pytest.importorskip("opacus")
    norms = [work(name, untied=True, dtype="float64")["gradient_norm"] for name in ("bk", "ghost")]
    for peer in ("opacus", "opacus-ghost"):
        result = work(peer, untied=True, dtype="float64")
        assert result["status"] == "ok", result
        norms.append(result["gradient_norm"])
    # Opacus divides by the norm plus 1e-6, and so clips to a little less.
    assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-5)
    assert 0 < norms[0] <= 2 * 0.1


@pytest.mark.parametrize(("steps", "known"), [(1, True), (14, False)])
def test_no_full_batch_is_one_that_is_checked(monkeypatch, steps, known):
    """Nor where some gradient is always zero, so that rules are checked more often."""
    sizes, checked = [], []
    due, kept = Schedule.due, Schedule.checked

    def spy(self, losses, *more):
        sizes.append(len(losses))
        checks = due(self, losses, *more)
        checked.extend([len(losses)] * checks)
        return checks

    monkeypatch.setattr(Schedule, "due", spy)
    monkeypatch.setattr(Schedule, "checked", lambda self, _, finite: kept(self, known, finite))
    made = settings(batch=3, length=10, steps=steps)
    assert worker.main(made.job("measure", "bk"))["status"] == "ok"
    assert set(checked) == {2}
    assert sizes.count(3) == 2 + max(steps, 13)


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
    def fail():
        raise error

    monkeypatch.setattr(worker.workloads, "build", lambda *_, **__: fail())
    result = work("bk")
    assert result["status"] == status
    assert result["message"].endswith(message)


def test_two_sessions_take_steps_in_turn():
    """Real processes: each is asked for its steps, and reports those and no others."""
    made = settings(**SMALL)
    sessions = [WorkerProcess(made.job("measure", name)) for name in ("none", "bk")]
    assert all(session.ready() for session in sessions)
    times = [[session.step() for session in sessions] for _ in range(3)]
    for session, seconds in zip(sessions, zip(*times, strict=True), strict=True):
        result = session.finish()
        assert result["status"] == "ok"
        assert tuple(result["seconds"]) == seconds


PARAMETERS = {
    "tiny": 757_248,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "smollm2-135m": 134_515_008,
    "roberta-base": 124_647_170,
    "vit-small": 21_669_514,
    "vit-base": 85_806_346,
    "wrn16-4": 2_751_562,
}


def make(name, untied=False, device="meta", length=None):
    length = length or MODELS[name].length
    return build(name, length=length, untied=untied, seed=0, device=device, dtype=torch.float32)


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes(name):
    """On the meta device: shapes without numbers."""
    workload = make(name)
    counted = sum(parameter.numel() for parameter in workload.model.parameters())
    assert counted == PARAMETERS[name]
    assert workload.model.training
    assert {len(value) for value in workload.inputs(3).values()} == {3}
    dropouts = [m.p for m in workload.model.modules() if isinstance(m, torch.nn.Dropout)]
    assert not any(dropouts)


@pytest.mark.parametrize("name", ["tiny", "wrn16-4"])
def test_losses_depend_on_their_own_record_alone(name):
    workload = make(name, device="cpu")
    inputs = workload.inputs(3)
    found = losses(workload, workload.model, inputs, "float32")
    assert found.shape == (3,)
    alone = {key: value[1:2] for key, value in inputs.items()}
    torch.testing.assert_close(losses(workload, workload.model, alone, "float32")[0], found[1])
