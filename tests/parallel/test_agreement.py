"""What ranks tell each other where a test of whole runs would see no difference.

On a CPU with two ranks a mistake here changes no bit: it shows on GPUs, with more ranks, with
another schedule, or for models with buffers.
"""

from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dpft.config.errors import ConfigError
from dpft.config.parallel import Parallel
from dpft.parallel.cohort import Replicas, SingleProcess, UnansweredError, _connected
from dpft.parallel.layouts import _pipelines, _sharded
from dpft.parallel.mesh import Pipelines
from dpft.parallel.optimizer_state import taken_apart
from dpft.parallel.pipelined_sums import pipelined
from dpft.parallel.pretended import fake_ranks
from dpft.parallel.sharded import Shards
from dpft.privacy import make_clipper
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.spec import Partition
from dpft.training.run import check_alike
from dpft.training.session import Session
from tests.parallel.test_pipeline import gpt2
from tests.small_runs import ready, settings


def test_flat_thresholds_that_move_are_those_of_every_stage():
    """Noise is scaled to them: stages that kept larger ones would have too little of it."""
    with fake_ranks(2):
        ranks = Pipelines(2, "zbv")  # the first rank has the first stage and the last
        model, adaptive = gpt2(), Quantiles(0.5, 0.3)
        whole = make_clipper(model, "flat_adaptive", threshold=3.2, adaptive=adaptive, cohort=ranks)
        clippers, _ = pipelined(model, whole, Partition("per_device", 4), ranks)
        clippers.move([0.7])
        assert clippers.thresholds == (0.7,)
        assert [own.thresholds for own in clippers.clippers.values()] == [(0.7,)] * 2
        clippers.close()


def test_the_ledger_tells_layouts_from_each_other():
    """The same noise on sums that are rounded otherwise would be another release."""
    with fake_ranks(4):
        cpu = torch.device("cpu")
        shards = [_sharded(cpu, 4, number).layout["shards"] for number in (2, 4)]
        told = dict(_pipelines(Parallel("pipeline", None, 2, "zbv", 4)).layout)
    assert shards == [2, 4]
    assert told == {
        "ranks": 4, "layout": "pipeline", "pipeline": 2, "schedule": "zbv", "microbatches": 4,
    }  # fmt: skip


def test_buffers_are_those_of_the_first_rank():
    """The others have room for them, with whatever lies in memory there."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    given = []

    class Watched(Shards):
        def spread(self, target, whole):
            given.append((target, whole))

    with fake_ranks(2):
        Watched(init_device_mesh("cpu", (2,))).place(model)
    for tensor in (*model.parameters(), *model.buffers()):
        assert any(target is tensor and whole is not None for target, whole in given)


def test_the_first_rank_saves_what_is_no_tensor_of_every_stage():
    class First(SingleProcess):
        owners = MappingProxyType({"own": 0, "other": 1})

        def gather(self, value):
            return [value, {"other": {"trust_ratio": 1.0}}]

    own, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.empty(2, device="meta"))
    optimizer = torch.optim.Adam([own, other])
    optimizer.state[own] = {"exp_avg": torch.zeros(2), "trust_ratio": 0.5}  # as LAMB's
    _, rest = taken_apart(optimizer, ["own", "other"], First())
    assert rest["values"] == {"own": {"trust_ratio": 0.5}, "other": {"trust_ratio": 1.0}}


def test_a_rank_says_what_stopped_it_though_the_others_are_gone():
    class Left(Replicas):
        rank, size = 0, 2

        def __init__(self):
            pass

        def _largest(self, numbers, word):
            raise UnansweredError(RuntimeError("connection closed"))

    with pytest.raises(ValueError, match="why"):
        Left().meet(ValueError("why"))
    with pytest.raises(UnansweredError):
        Left().meet()
    with pytest.raises(torch.OutOfMemoryError), _connected():
        raise torch.OutOfMemoryError("of this rank")


@pytest.mark.parametrize(
    ("words", "packages", "told"),
    [
        ([], {}, None),
        (["clip.threshold=0.7"], {}, r"other settings than the first .*clip.threshold: 0.7 -> "),
        ([], {"dpft": "0.0.1"}, r'other packages than the first .*dpft: "0.0.1" -> '),
    ],
)
def test_a_rank_that_computes_otherwise_is_refused_by_name(tmp_path, words, packages, told):
    class First(SingleProcess):
        def from_first(self, value):
            self.has = value
            return value

    class Second(SingleProcess):
        rank, size = 1, 2

        def from_first(self, value):
            return first.has[0], {**first.has[1], **packages}

    first = First()
    check_alike(settings(tmp_path, *words), first)
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        check_alike(settings(tmp_path), Second())


def test_ranks_with_other_code_of_a_plugin_are_told_apart(tmp_path):
    """Its version may be the same: a rule that clips less would go into the sum unseen."""
    words = []

    class Listening(SingleProcess):
        def meet(self, trouble=None, word=""):
            words.append(word)

    with ready(settings(tmp_path)) as (prepared, _, progress):
        for code in ("1", "2", "2"):
            own = {"a rule for own.Layer": f"own 1.0 {code}"}
            told = replace(prepared, own=own, cohort=Listening())
            Session(settings(tmp_path), told, None, progress)
    one, two, again = (word for word in words if word.startswith(prepared.data))
    assert one != two == again
