"""Several devices and several processes are refused: they would release under one noise."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.mechanism import Mechanism


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=(tmp_path / "group").as_uri(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("style", ["bk", "ghost", "per_layer_adaptive"])
def test_one_of_several_processes_is_refused(group_of_one, style, monkeypatch):
    """Also by the noise, where the group came after the clipper; not without privacy."""
    clipper = make_clipper(nn.Linear(2, 1), style, threshold=1.0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UnsupportedLayerError, match=r"one of 2 \(torch.distributed\)"):
        make_clipper(nn.Linear(2, 1), style, threshold=1.0)
    if clipper.policy.rule is None:
        with pytest.raises(UnsupportedLayerError, match="under the same noise"):
            Mechanism(1000, 10, 5, 1.0, (1.0,), 1e-5).noise(b"key", clipper)
    make_clipper(nn.Linear(2, 1), "none")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("wrapper", [nn.DataParallel, DistributedDataParallel])
def test_wrapped_models_are_refused_by_name(group_of_one, wrapper, inside):
    model = wrapper(nn.Linear(2, 1))
    if inside:
        model = nn.Sequential(nn.Linear(2, 2), model)
    name = "1" if inside else "the model"
    with pytest.raises(UnsupportedLayerError, match=f"{name} is a {wrapper.__name__}"):
        make_clipper(model, "bk", threshold=1.0)
