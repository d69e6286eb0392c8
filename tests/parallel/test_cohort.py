"""What ranks share, add up and agree on."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dpft.config.errors import ConfigError, RankError
from dpft.parallel.cohort import Pipeline, RankGoneError, Replicas, TrainingCohort, _collective
from dpft.parallel.pipeline import pipelined
from dpft.parallel.sharded import Shards
from dpft.privacy import make_clipper
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.sampling import BLANK
from dpft.privacy.spec import Partition
from dpft.training.run import check_alike
from dpft.training.session import Session
from tests.parallel.ranks import fake_ranks, together
from tests.parallel.test_pipeline import gpt2
from tests.small_runs import ready, settings


def test_a_rank_sends_tensors_of_its_device_alone(monkeypatch):
    """A group of GPUs refuses tensors on the CPU, such as Adam's count of steps."""
    sent = []
    monkeypatch.setattr("torch.distributed.broadcast", lambda tensor, **_: sent.append(tensor))
    ranks = object.__new__(Replicas)
    ranks._group, ranks._device = None, torch.device("meta")
    with pytest.raises(NotImplementedError):  # a copy from there
        ranks.broadcast(torch.zeros(()), torch.ones(()))
    assert sent[0].device.type == "meta"


def sums(cohort):
    """Of tensors below, at and above the size of one all-reduce, in several types.

    The last has eight bits: whoever adds one to 256 in it has 256, and so has who adds it again.
    """
    from dpft.parallel import cohort as module

    module._BUCKET = 100
    torch.manual_seed(cohort.rank)
    tensors = [torch.randn(n, dtype=torch.float64) for n in (3, 40, 99, 1, 100, 250, 0, 7)]
    tensors += [torch.randn(5, 4).t(), torch.randn(300).to(torch.bfloat16)]
    tensors.append(torch.full((100,), 1.0 if cohort.rank else 256.0).to(torch.bfloat16))
    mine = [tensor.clone() for tensor in tensors]
    cohort.all_reduce(tensors)
    return mine, tensors


def met(cohort, case):
    trouble = ValueError("rows change places") if case == "error" and cohort.rank == 1 else None
    word = f"drawn {cohort.rank == 1}" if case == "unlike" else "drawn"
    try:
        cohort.barrier(trouble, word)
    except (RankError, ValueError) as error:
        return type(error).__name__, str(error)
    return None


def said(cohort):
    meetings = [met(cohort, case) for case in ("well", "error", "unlike")]
    assert cohort.broadcast_object({"key": bytes([cohort.rank])}) == {"key": b"\0"}
    return *sums(cohort), meetings


@pytest.fixture(scope="module")
def ranks():
    """The results of every collective on each rank; three have sums that two cannot round."""
    return together(said, 3)


def test_sums_are_those_of_all_ranks_and_the_same_bits_on_each(ranks):
    tolerances = [*([1e-14] * 8), 1e-6, 1e-2, 0.0]
    for place, tolerance in enumerate(tolerances):
        total = sum(mine[place].double() for mine, *_ in ranks)
        for _, tensors, _ in ranks:
            assert torch.equal(tensors[place], ranks[0][1][place])
            found = tensors[place].double()
            torch.testing.assert_close(found, total, rtol=tolerance, atol=tolerance)


def test_ranks_go_on_together_or_not_at_all(ranks):
    for rank, (_, _, meetings) in enumerate(ranks):
        well, (stopped, why), (unlike, text) = meetings
        assert well is None
        assert stopped == ("ValueError" if rank == 1 else "RankError")
        assert ("rows change places" if rank == 1 else "rank 1 of 3 stopped") in why
        assert unlike == "RankError"
        assert "something else than another rank" in text


def test_thresholds_that_move_are_those_of_every_stage():
    """Noise is scaled to them: stages that kept larger ones would have too little of it."""
    with fake_ranks(2):
        ranks = Pipeline()
        model, adaptive = gpt2(), Quantiles(0.5, 0.3)
        options = {"threshold": 3.2, "adaptive": adaptive, "groups": Partition("per_device", 2)}
        whole = make_clipper(model, "per_device_adaptive", cohort=ranks, **options)
        clippers, _ = pipelined(model, whole, Partition("per_device", 2), ranks)
        clippers.policy.move([0.7, 0.6])
        assert clippers.thresholds == (0.7, 0.6)
        assert clippers.clipper.thresholds == (0.7,)
        clippers.close()


def test_buffers_are_those_of_the_first_rank():
    """The others have room for them, with whatever lies in memory there."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    given = []

    class Watched(Shards):
        def broadcast(self, target, whole):
            given.append((target, whole))

    with fake_ranks(2):
        Watched(init_device_mesh("cpu", (2,))).place(model)
    for tensor in (*model.parameters(), *model.buffers()):
        assert any(target is tensor and whole is not None for target, whole in given)


def test_a_rank_says_what_stopped_it_though_the_others_are_gone():
    class Left(Replicas):
        rank, size = 0, 2

        def __init__(self):
            pass

        def _largest(self, numbers, word):
            raise RankGoneError(RuntimeError("connection closed"))

    with pytest.raises(ValueError, match="why"):
        Left().barrier(ValueError("why"))
    with pytest.raises(RankGoneError):
        Left().barrier()
    with pytest.raises(torch.OutOfMemoryError), _collective():
        raise torch.OutOfMemoryError("of this rank")


@pytest.mark.parametrize(
    ("words", "packages", "told"),
    [
        ([], {}, None),
        (["clip.threshold=0.7"], {}, r"other settings or packages .*clip.threshold: 0.7 -> "),
        ([], {"package dpft": "0.0.1"}, r'packages .*package dpft: "0.0.1" -> '),
    ],
)
def test_a_rank_that_computes_otherwise_is_refused_by_name(tmp_path, words, packages, told):
    class First(TrainingCohort):
        def broadcast_object(self, value):
            self.has = value
            return value

    class Second(TrainingCohort):
        rank, size = 1, 2

        def broadcast_object(self, value):
            return {**first.has, **packages}

    first = First()
    check_alike(settings(tmp_path, *words), first)
    with pytest.raises(ConfigError, match=told) if told else nullcontext():
        check_alike(settings(tmp_path), Second())


def test_ranks_with_other_code_of_a_plugin_are_told_apart(tmp_path):
    """Its version may be the same: a rule that clips less would go into the sum unseen."""
    words = []

    class Listening(TrainingCohort):
        def barrier(self, trouble=None, word=""):
            words.append(word)

    with ready(settings(tmp_path)) as (prepared, _, _):
        for code in ("1", "2", "2"):
            own = {"a rule for own.Layer": f"own 1.0 {code}"}
            compute = {**prepared.header["compute"], "plugins": own}
            header = {**prepared.header, "compute": compute}
            Session(replace(prepared, header=header, cohort=Listening(), directory=None))
    one, two, again = (word for word in words if word.startswith(prepared.header["data"]))
    assert one != two == again


LENGTHS = [1 + 7 * unit % 6 for unit in range(20)]


@hypothesis.settings(max_examples=40)
@given(
    drawn=st.sets(st.integers(0, len(LENGTHS) - 1)).map(sorted),
    layout=st.sampled_from((Replicas, Shards, Pipeline)),
    size=st.integers(1, 4),
    most=st.integers(1, 30),
)
def test_whatever_is_drawn_each_record_is_in_one_microbatch_of_one_rank(drawn, layout, size, most):
    def cut(indices):
        found = [[]]
        for unit in indices:
            if found[-1] and sum(LENGTHS[one] for one in found[-1]) + LENGTHS[unit] > most:
                found.append([])
            found[-1].append(unit)
        return found if indices else []

    pieces = []
    for rank in range(size):
        cohort = object.__new__(layout)  # no process has joined another
        cohort.rank, cohort.size = rank, size
        pieces.append(cohort.pieces(drawn, cut))
    if layout is Pipeline:  # its ranks go through the same; each clips what it has of the model
        assert all(own == pieces[0] for own in pieces)
        pieces = pieces[:1]
    if layout is Shards:  # who runs a layer waits for all
        assert len({len(own) for own in pieces}) == 1
    clipped = Counter(unit for own in pieces for piece in own for unit in piece if unit != BLANK)
    assert clipped == Counter(drawn)
