"""What ranks share, add up and agree on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpft.config.errors import RankError
from dpft.parallel.cohort import Replicas
from tests.parallel.ranks import together


@given(drawn=st.lists(st.integers()), size=st.integers(1, 9))
def test_shares_are_disjoint_and_complete(drawn, size):
    parts = []
    for rank in range(size):
        ranks = object.__new__(Replicas)
        ranks.rank, ranks.size = rank, size
        parts.append(list(ranks.share(drawn)))
    assert sorted(unit for part in parts for unit in part) == sorted(drawn)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


class SentError(Exception):
    """What a collective was asked to send."""


def test_a_rank_sends_what_lies_on_its_device_alone(monkeypatch):
    """A group of GPUs refuses what lies on the CPU, such as Adam's count of steps."""

    def broadcast(tensor, **_):
        raise SentError(tensor.device.type)

    monkeypatch.setattr("torch.distributed.broadcast", broadcast)
    ranks = object.__new__(Replicas)
    ranks._group, ranks._device = None, torch.device("meta")
    with pytest.raises(SentError, match="meta"):
        ranks.spread(torch.zeros(()), torch.ones(()))


def sums(cohort):
    """Of tensors below, at and above the size of one all-reduce, in several types."""
    from dpft.parallel import cohort as module

    module._BUCKET = 100
    torch.manual_seed(cohort.rank)
    tensors = [torch.randn(n, dtype=torch.float64) for n in (3, 40, 99, 1, 100, 250, 0, 7)]
    tensors += [torch.randn(5, 4).t(), torch.randn(300).to(torch.bfloat16)]
    # Of eight bits: whoever adds one to 256 in it has 256.
    tensors.append(torch.full((100,), 1.0 if cohort.rank else 256.0).to(torch.bfloat16))
    mine = [tensor.clone() for tensor in tensors]
    cohort.add_up(tensors)
    return mine, tensors


def met(cohort, case):
    trouble = ValueError("rows change places") if case == "error" and cohort.rank == 1 else None
    word = f"drawn {cohort.rank == 1}" if case == "unlike" else "drawn"
    try:
        cohort.meet(trouble, word)
    except (RankError, ValueError) as error:
        return type(error).__name__, str(error)
    return None


def said(cohort):
    meetings = {case: met(cohort, case) for case in ("well", "error", "unlike")}
    return sums(cohort), meetings, cohort.from_first({"key": bytes([cohort.rank])})


@pytest.fixture(scope="module")
def ranks():
    """What each of three ranks returned from every collective."""
    return together(said, 3)


def test_sums_are_those_of_all_ranks_and_the_same_bits_on_each(ranks):
    results = [result for result, *_ in ranks]
    for place, (expected, tolerance) in enumerate(
        [*((torch.float64, 1e-14) for _ in range(8)), (torch.float32, 1e-6), (torch.float32, 1e-2)]
    ):
        total = sum(mine[place].to(expected) for mine, _ in results)
        for _, tensors in results:
            assert torch.equal(tensors[place], results[0][1][place])
            assert torch.allclose(
                tensors[place].to(expected), total, rtol=tolerance, atol=tolerance
            )


def test_half_precision_is_added_up_in_more_digits(ranks):
    expected = torch.tensor(256.0 + len(ranks) - 1).to(torch.bfloat16)
    for _, tensors in (result for result, *_ in ranks):
        assert (tensors[-1] == expected).all()


def test_ranks_go_on_together_or_not_at_all(ranks):
    for rank, (_, meetings, _) in enumerate(ranks):
        assert meetings["well"] is None
        name, text = meetings["error"]
        assert name == ("ValueError" if rank == 1 else "RankError")
        stopped = f"rank 1 of {len(ranks)} stopped"
        assert ("rows change places" if rank == 1 else stopped) in text
        name, text = meetings["unlike"]
        assert name == "RankError"
        assert "something else than another rank" in text


def test_all_have_what_the_first_has(ranks):
    assert [first for *_, first in ranks] == [{"key": b"\0"}] * len(ranks)
