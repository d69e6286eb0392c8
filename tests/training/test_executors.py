"""Runs whose step is compiled train as those whose step is not."""

import importlib.util
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dpft.privacy import LostRecordError, make_clipper
from dpft.privacy.program import Program
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.units import Records, UnitBatch
from dpft.training import executors
from dpft.training.executors import ProgramError, Programs
from dpft.training.loop import check_weights
from dpft.training.statistics import StepStatistics
from tests.privacy.small_models import cancelling, gpt2
from tests.privacy.waits import Waits
from tests.small_runs import settings, trained
from tests.training.test_loop import weights


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Programs are traced, and run operation by operation: a compiler takes a minute for each."""
    monkeypatch.setattr("dpft.training.session.Programs", partial(Programs, backend="graph"))


def check_same(folder, *words, tolerance=1e-4):
    """That an eager run and one of programs end at the same finite weights."""
    words = ("privacy.noise_seed=1", "model.dropout=0", *words)
    found = []
    for name in ("false", "true"):
        run = settings(folder, *words, f"compile={name}", f"name=compile-{name}")
        found.append(weights(trained(run).parts.loaded.model))
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
    assert all(parameter.isfinite().all() for parameter in found[1].values())


SGD = ("optim.name=sgd", "optim.lr=0.1")
WEIGHED = ("task=classification", "task.source=sample", "task.class_weights={thanks: 3}")


@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (["clip=per_layer_adaptive", "optim.steps=3"], 1e-4),
        (["clip=none", *SGD, *WEIGHED], 1e-5),
        (["clip=ghost", "adapt=lora", "sampling=truncated_poisson"], 1e-4),
        (["adapt=rgp", *SGD], 1e-4),
        (["task=e2e", "model=random-gpt2", "adapt=prefix", *SGD], 1e-4),
        (["clip=bk", "precision=bfloat16", *SGD], 1e-3),
        pytest.param(
            [
                *("task=e2e", "model=random-llama", "adapt=lora", "model.dtype=nf4", "clip=bk"),
                *("precision=bfloat16", *SGD),
            ],
            1e-3,
            marks=pytest.mark.skipif(
                importlib.util.find_spec("bitsandbytes") is None,
                reason="bitsandbytes is not installed: pip install 'dpft[nf4]'",
            ),
        ),
    ],
)
def test_a_run_of_programs_gives_the_weights_of_an_eager_one(tmp_path, words, tolerance):
    check_same(tmp_path, *words, tolerance=tolerance)


def spoiled(monkeypatch, spoil):
    """Have the losses of records, ``(B,)``, changed by a function of them and of their tokens."""
    losses = Records.losses

    def changed(units, model, batch):
        return spoil(losses(units, model, batch), batch.batch.tensors["input_ids"])

    monkeypatch.setattr(Records, "losses", changed)


def test_records_that_are_not_finite_contribute_zero(tmp_path, monkeypatch):
    def bad(losses, ids):
        return torch.where(ids[:, 1] % 3 == 1, losses * math.nan, losses)

    spoiled(monkeypatch, bad)
    check_same(tmp_path, "clip=per_layer", *SGD)


def test_a_model_that_is_no_program_trains_after_one_warning(tmp_path, monkeypatch):
    def reads(losses, ids):
        return losses * 2 if bool(ids.sum() > 0) else losses

    spoiled(monkeypatch, reads)
    with pytest.warns(UserWarning, match="no single program") as warned:
        check_same(tmp_path, "clip=bk")
    assert len(warned) == 1


def test_a_program_that_is_wrong_at_first_is_not_used(tmp_path, monkeypatch):
    own = Program.__call__

    def wrong(program, *inputs):
        found = own(program, *inputs)
        return found._replace(sums=[found.sums[0] * 1.01, *found.sums[1:]])

    monkeypatch.setattr(Program, "__call__", wrong)
    with pytest.warns(UserWarning, match=r"embeddings\.weight differ"):
        check_same(tmp_path, *SGD)


def test_a_program_that_becomes_wrong_ends_the_run(tmp_path, monkeypatch):
    own, calls = Program.__call__, []

    def wrong(program, *inputs):
        found = own(program, *inputs)
        calls.append(program)
        once = calls.count(program) == 1
        return found if once else found._replace(norms=found.norms * 1.01)

    monkeypatch.setattr(Program, "__call__", wrong)
    monkeypatch.setattr(executors, "_AGAIN", 2)
    run = settings(tmp_path, "compile=true", "optim.steps=8", "optim.batch_size=12")
    with pytest.raises(ProgramError, match="the norms differ"):
        trained(run)


def programs_of(style):
    """Programs of a small model, and a batch whose record 3 has terms of this size that cancel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 1))
    clipper = make_clipper(model, style, threshold=1.0)

    def losses(model, batch):
        x, shares = batch.batch.tensors.values()
        return (model(x).squeeze(2) * shares).sum(1)

    def batch(size):
        return UnitBatch(Batch(cancelling(size)), torch.ones(8, 1, dtype=torch.float64))

    data = SimpleNamespace(losses=losses)
    return data, model, clipper, Programs(data, model, clipper, "float32", "graph"), batch


@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer"])
def test_a_record_that_a_program_has_lost_is_dropped_when_the_step_is_repeated(style):
    data, model, clipper, programs, batch = programs_of(style)
    programs.add(batch(1.0), 8, StepStatistics())  # the program is found right here
    lost, statistics = batch(math.inf), StepStatistics()
    programs.add(lost, 8, statistics)
    with pytest.raises(LostRecordError):
        programs.settle(statistics)
    executors.forget(clipper)
    executors.add_clipped(data, model, clipper, lost, 8, StepStatistics())
    assert len(clipper.norms) == 7
    assert all(p.grad.isfinite().all() for p in model.parameters())
    clipper.collect()
    assert not clipper.careful  # so that a step which is replayed alone has the same course


@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer"])
def test_a_record_whose_terms_cancel_is_no_difference_from_the_eager_step(style, monkeypatch):
    monkeypatch.setattr(executors, "_AGAIN", 2)
    _, _, _, programs, batch = programs_of(style)
    for size in (1e2, 1e2, 1e3):  # the last is compared again
        programs.add(batch(size), 8, StepStatistics())
    assert not any(shape.eager for shape in programs._shapes.values())


@pytest.mark.parametrize("style", ["bk", "per_layer_adaptive", "none"])
def test_the_host_waits_once_for_a_step_of_programs(style):
    """Every tensor counts as a GPU's, but for the mask of padding, which is the host's."""
    case = gpt2(True)
    case.model.float()
    clipper = make_clipper(case.model, style, threshold=None if style == "none" else 0.1)
    units = SimpleNamespace(losses=lambda model, rows: case.losses(model, rows.batch.tensors))
    programs = Programs(units, case.model, clipper, "float32", "graph")
    real = torch.arange(case.batch) < case.batch - 1
    batch = UnitBatch(Batch(case.data), torch.ones(case.batch, 1, dtype=torch.float64), real)
    optimizer = torch.optim.Adam(clipper.parameters.values())
    programs.add(batch, case.batch - 1, StepStatistics())  # eagerly too
    statistics = StepStatistics()
    with Waits(host=[real]) as microbatches:
        for _ in range(3):
            programs.add(batch, case.batch - 1, statistics)
    assert not microbatches.found
    with Waits() as step:
        programs.settle(statistics)
        clipper.collect()
        assert step.found.total() == 1, step.found
    optimizer.step()
    with Waits() as after:
        check_weights(optimizer, 0)
        statistics.summary()
    assert after.found.total() == 2, after.found
