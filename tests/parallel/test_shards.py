"""Parts of parameters: they tile the whole; what cannot be added up exactly is refused."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from dpft.config.errors import RankError
from dpft.parallel.cohort import Replicas
from dpft.parallel.sharded import Shards, first_row, shard
from dpft.privacy import UnsupportedLayerError, make_clipper
from tests.parallel.ranks import together
from tests.parallel.test_matrix import Case, built, losses


@given(rows=st.integers(1, 40), size=st.integers(1, 9))
def test_parts_tile_the_whole(rows, size):
    """As ``torch.chunk`` cuts, by which FSDP does; that slices have the noise of the whole is a
    test of noise."""
    parts = torch.arange(rows).chunk(size)
    places = [first_row(rows, rank, size) for rank in range(size + 1)]
    assert places == [0, *(int(part[-1]) + 1 for part in parts), *[rows] * (size - len(parts))]


def refusals(cohort):
    """What is said of layouts in which some rank's records would be missing, or noise would."""
    both = init_device_mesh("cpu", (2, 1), mesh_dim_names=("other", "own"))
    layouts = {
        "mesh": (Shards(), {"mesh": both["own"]}),
        "hybrid": (Shards(), {"mesh": both}),
        "placement": (Shards(), {"shard_placement_fn": lambda _: Shard(1)}),
        "copies": (Replicas(), {}),
        "nobody": (None, {}),
        "left out": (Shards(), {"ignored_params": set()}),
    }
    said = {}
    for name, (ranks, how) in layouts.items():
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
        if name == "left out":
            how["ignored_params"].add(model[1].weight)
        fully_shard(model, **how)
        style = "none" if name == "left out" else "bk"
        try:
            make_clipper(model, style, cohort=ranks, threshold=1.0)
        except UnsupportedLayerError as error:
            said[name] = str(error)
    model = fully_shard(Either())
    clipper = make_clipper(model, "bk", cohort=Shards(), threshold=1.0)
    try:
        clipper.backward(model(torch.ones(2, 3), first=cohort.rank == 0).square().sum(1))
    except RankError as error:
        said["calls"] = str(error)
    return said


class Either(nn.Module):
    """Two layers of one shape, of which the data chooses one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, first):
        return self.first(x) if first else self.second(x)


def test_layouts_that_would_lose_records_are_refused_by_name():
    for said in together(refusals, 2):
        assert "'0.weight' is sharded over 1 of 2 ranks" in said["mesh"]
        assert "'0.weight' has placements (Replicate(), Shard(dim=0))" in said["hybrid"]
        assert "'0.weight' has placements (Shard(dim=1),)" in said["placement"]
        for case in ("copies", "nobody"):
            assert "'0.weight' is sharded over several processes" in said[case]
        assert "'1.weight' is in no unit of FSDP" in said["left out"]
        # Or the sums of one layer would be added to those of the other.
        assert "has computed something else than another rank" in said["calls"]


# Of each rank, the units of three batches and which of them are no blanks. In the third the first
# rank has nothing due, and looks ahead at one unit where the batch has two; the second has a blank
# again, which shows nothing, so that it looks each time.
UNLIKE = (
    (([0, 1], [True, True]), ([2, 3], [True, True]), ([4, 5], [True, False])),
    (([0, 1], [True, True]), ([2], [False]), ([3], [False])),
)


def checked(cohort):
    """Which batches are looked at ahead."""
    case = Case("bk", "gpt2")
    made = built(case)
    shard(made.model)
    clipper = make_clipper(made.model, case.style, cohort=Shards(), **case.options)
    ahead = []
    for units, flags in UNLIKE[cohort.rank]:
        real = torch.tensor(flags)
        index = clipper.to_check(len(units), real)
        ahead.append(index is not None)
        if index is not None:
            clipper.check(losses(case, made, [units[i] for i in index]), weights=real[index])
        clipper.backward(losses(case, made, units), weights=real)
    return ahead


def test_ranks_check_their_rules_together_though_not_all_have_one_due():
    """Or one would wait for another that has gone on, and that one for it: for ever."""
    assert together(checked, 2) == [[True, False, True]] * 2
