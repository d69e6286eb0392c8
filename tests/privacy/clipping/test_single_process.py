"""Several devices and several processes are refused: they would release under one noise."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.mechanism import Mechanism
from dpft.privacy.spec import STYLES

PRIVATE = [style for style in STYLES if style != "none"]


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=(tmp_path / "group").as_uri(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def group_of_two(group_of_one, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


def make(model, style):
    return make_clipper(model, style, threshold=1.0, **OPTIONS.get(style, {}))


OPTIONS = {
    name + suffix: options
    for name, options in (
        ("uniform", {"count": 1}),
        ("per_device", {"count": 1}),
        ("custom", {"patterns": (("*",),)}),
        ("two_group", {"boundary": 1}),
    )
    for suffix in ("", "_adaptive")
}


@pytest.mark.parametrize("style", PRIVATE)
def test_one_of_several_processes_is_refused(group_of_two, style):
    with pytest.raises(UnsupportedLayerError, match=r"one of 2 \(torch.distributed\)"):
        make(nn.Linear(2, 1), style)


def test_a_group_that_came_after_the_clipper_is_refused_by_the_noise(group_of_one, monkeypatch):
    clipper = make(nn.Linear(2, 1), "bk")
    mechanism = Mechanism(1000, 10, 5, 1.0, (1.0,), 1e-5)
    mechanism.noise(b"key", clipper)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UnsupportedLayerError, match="under the same noise"):
        mechanism.noise(b"key", clipper)


def test_without_privacy_processes_are_nobodys_concern(group_of_two):
    make_clipper(nn.Linear(2, 1), "none")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("wrapper", [nn.DataParallel, DistributedDataParallel])
def test_wrapped_models_are_refused_by_name(group_of_one, wrapper, inside):
    model = wrapper(nn.Linear(2, 1))
    if inside:
        model = nn.Sequential(nn.Linear(2, 2), model)
    name = "1" if inside else "the model"
    with pytest.raises(UnsupportedLayerError, match=f"{name} is a {wrapper.__name__}"):
        make(model, "bk")
