"""What ranks share, add up and agree on."""

import pytest
import torch

from dpft.config.schema import Parallel
from dpft.parallel.cohort import RankError, SingleProcess, launched
from dpft.parallel.layouts import join
from tests.parallel.ranks import together

SIZES = (2, 3)


def shares(cohort, drawn):
    return list(cohort.share(drawn))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("drawn", [[], [7], list(range(13))])
def test_shares_are_disjoint_and_complete(size, drawn):
    parts = together(shares, size, drawn)
    assert sorted(unit for part in parts for unit in part) == drawn
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def sums(cohort):
    """Of tensors below, at and above the size of one all-reduce, in several types."""
    from dpft.parallel import cohort as module

    module._BUCKET = 100
    torch.manual_seed(cohort.rank)
    tensors = [torch.randn(n, dtype=torch.float64) for n in (3, 40, 99, 1, 100, 250, 0, 7)]
    tensors += [torch.randn(5, 4).t(), torch.randn(300).to(torch.bfloat16)]
    mine = [tensor.clone() for tensor in tensors]
    cohort.add_up(tensors)
    return mine, tensors


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_those_of_all_ranks_and_the_same_bits_on_each(size):
    results = together(sums, size)
    for place, (expected, tolerance) in enumerate(
        [*((torch.float64, 1e-14) for _ in range(8)), (torch.float32, 1e-6), (torch.float32, 1e-2)]
    ):
        total = sum(mine[place].to(expected) for mine, _ in results)
        for _, tensors in results:
            assert torch.equal(tensors[place], results[0][1][place])
            assert torch.allclose(
                tensors[place].to(expected), total, rtol=tolerance, atol=tolerance
            )


def met(cohort, case):
    trouble = ValueError("rows change places") if case == "error" and cohort.rank == 1 else None
    word = f"drawn {cohort.rank == 1}" if case == "unlike" else "drawn"
    try:
        cohort.meet(trouble, word)
    except (RankError, ValueError) as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("size", SIZES)
def test_ranks_go_on_together_or_not_at_all(size):
    assert together(met, size, "well") == [None] * size
    for rank, (name, text) in enumerate(together(met, size, "error")):
        assert name == ("ValueError" if rank == 1 else "RankError")
        assert ("rows change places" if rank == 1 else f"rank 1 of {size} stopped") in text
    for name, text in together(met, size, "unlike"):
        assert name == "RankError"
        assert "something else than another rank" in text


def firsts(cohort):
    return cohort.from_first({"key": bytes([cohort.rank])})


def test_all_have_what_the_first_has():
    assert together(firsts, 3) == [{"key": b"\0"}] * 3


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = join(torch.device("cpu"), Parallel())
    assert isinstance(alone, SingleProcess)
    tensor = torch.ones(3)
    alone.add_up([tensor])
    alone.meet(word="x")
    assert (list(alone.share([3, 1])), alone.from_first(5), tensor.tolist()) == ([3, 1], 5, [1] * 3)
    with pytest.raises(ValueError, match="why"):
        alone.meet(ValueError("why"))


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("1", 1), ("", 1), ("many", 1)])
def test_torchrun_says_how_many_it_started(monkeypatch, text, size):
    monkeypatch.setenv("WORLD_SIZE", text)
    assert launched() == size
