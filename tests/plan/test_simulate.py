"""A step on fake tensors has the memory of one on true tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.plan.estimate import shape_of, training_of
from dpft.plan.simulate import Meter, PretendedAnswers, simulated, steps
from tests.plan.test_metering import flops

CLOSE = 0.01  # beside what is counted, what Python frees a moment later


@pytest.mark.parametrize("style", ["none", "bk", "per_layer"])
def test_memory_of_one_process_is_that_of_true_tensors(style):
    run = parse(compose(["model=random-gpt2", f"clip={style}", "model.tied=false"]))
    training, meter = training_of(run, shape_of(run, 3, 20)), Meter()
    with meter:
        true = steps(training, meter, training.build())
    fake = simulated(training, on_gpu=False)
    assert fake.held == pytest.approx(true.held, rel=CLOSE)
    assert (fake.checked or 0) == pytest.approx(true.checked or 0, rel=CLOSE)
    assert fake.peaks == pytest.approx(true.peaks, rel=CLOSE)
    assert [flops(work) for work in fake.work.values()] == [flops(w) for w in true.work.values()]


def test_a_storage_counts_until_nothing_refers_to_it():
    meter = Meter()
    with meter:
        a = torch.zeros(1000)
        view = a[10:]
        assert meter.now == 4000
        b = a + 1
        assert meter.now == meter.peak == 8000
        del a
        assert meter.now == 8000
        del view, b
        assert (meter.now, meter.peak) == (0, 8000)


def test_what_is_asked_of_fake_numbers_is_answered_as_where_all_goes_well():
    with FakeTensorMode(), PretendedAnswers():
        x = torch.randn(4, 3)
        assert bool(torch.isfinite(x).all())
        assert not bool(torch.isnan(x).any())
        assert float(x.norm()) == 0.0
        assert float(x.sum()) == 1.0
        assert len((x[:, 0] > 0).nonzero()) == 4
        assert int(torch.tensor(7)) == 7
