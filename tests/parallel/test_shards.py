"""Parts of parameters: they tile the whole; what cannot be added up exactly is refused."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from dpft.config.errors import RankError
from dpft.parallel.cohort import Replicas
from dpft.parallel.sharded import Shards, first_row, shard
from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.noise import noisy_mean_
from tests.parallel.matrix import Case, built, losses, one_process
from tests.parallel.ranks import together


@given(rows=st.integers(1, 40), width=st.integers(1, 5), size=st.integers(1, 9))
def test_parts_tile_the_whole_and_have_its_noise(rows, width, size):
    """As ``torch.chunk`` cuts, by which FSDP does."""
    whole = torch.arange(float(rows * width)).view(rows, width)
    noisy_mean_(noisy := whole.flatten().clone(), b"k" * 32, 0.3, 7)
    parts = [chunk.flatten().clone() for chunk in whole.chunk(size)]
    for rank, part in enumerate([*parts, *[torch.empty(0)] * (size - len(parts))]):
        first = first_row(rows, rank, size) * width
        assert first_row(rows, rank + 1, size) * width == first + len(part)
        noisy_mean_(part, b"k" * 32, 0.3, 7, first)
        assert torch.equal(part, noisy[first : first + len(part)])
    assert first_row(rows, 0, size) == 0
    assert first_row(rows, size, size) == rows


def refusals(cohort):
    """What is said of layouts in which some rank's records would be missing, or noise would."""
    half = init_device_mesh("cpu", (2, 1), mesh_dim_names=("other", "own"))["own"]
    several = {"cohort": Shards(), "threshold": 1.0}
    layouts = {
        "mesh": ("bk", several, {"mesh": half}),
        "mesh, not private": ("none", several, {"mesh": half}),
        "placement": ("bk", several, {"shard_placement_fn": lambda _: Shard(1)}),
        "copies": ("bk", {"cohort": Replicas(), "threshold": 1.0}, {}),
        "copies, not private": ("none", {"cohort": Replicas()}, {}),
        "nobody": ("bk", {"threshold": 1.0}, {}),
        "left out": ("none", several, {"ignored": True}),
    }
    said = {}
    for name, (style, options, how) in layouts.items():
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
        if how.pop("ignored", False):
            how["ignored_params"] = {model[1].weight}
        fully_shard(model, **how)
        try:
            make_clipper(model, style, **options)
        except UnsupportedLayerError as error:
            said[name] = str(error)
    model = fully_shard(Either())
    clipper = make_clipper(model, "bk", **several)
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
        for case in ("mesh", "mesh, not private"):
            assert "'0.weight' is sharded over ranks" in said[case]
        assert "'0.weight' has placements (Shard(dim=1),)" in said["placement"]
        for case in ("copies", "copies, not private", "nobody"):
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
            clipper.check(losses(case, made, [units[i] for i in index]), real=real[index])
        clipper.backward(losses(case, made, units), real=real)
    return ahead


def test_ranks_check_their_rules_together_though_not_all_have_one_due():
    """Or one would wait for another that has gone on, and that one for it: for ever."""
    assert together(checked, 2) == [[True, False, True]] * 2


def left_out(cohort):
    """Sums where some parameters are in no unit, and each rank has the whole of them."""
    case = Case("per_layer", "gpt2")
    made = built(case)
    whole = {p for name, p in made.model.named_parameters() if name.endswith("bias")}
    shard(made.model, ignored_params=whole)
    clipper = make_clipper(made.model, case.style, cohort=Shards(), **case.options)
    mine = [[0, 1, 2], [3, 4, 5, 6]][cohort.rank]
    clipper.backward(losses(case, made, mine))
    clipper.collect()
    sums = {
        name: p.grad.numpy()
        for name, p in clipper.parameters.items()
        if type(p.grad) is torch.Tensor
    }
    assert len(sums) == len(whole)
    return sums


def test_parameters_in_no_unit_are_added_up_whole():
    expected = one_process(Case("per_layer", "gpt2")).sums
    for sums in together(left_out, 2):
        for name, total in sums.items():
            np.testing.assert_allclose(total.ravel(), expected[name][1], 1e-10, 1e-12)


def in_bfloat16(cohort):
    """Of each style, sums of two ranks, and of one that goes through the same microbatches.

    Also the norm of what one record leaves, in thresholds.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("other", "own"))["own"]
    single, micro = Shards(alone, alone.get_group()), [[0, 1], [2, 3], [4, 5], [6, 0]]
    results = []
    for style in HALVED:
        case = Case(style, "gpt2", torch.float32)
        found = []
        for ranks, mesh, mine in (
            (Shards(), None, micro[cohort.rank :: 2]),
            (single, alone, micro),
            (single, alone, [[3]]),
        ):
            made = built(case)
            shard(made.model, mesh, mp_policy=policy)
            clipper = make_clipper(made.model, style, cohort=ranks, **case.options)
            for units in mine:
                clipper.backward(losses(case, made, units))
            sums = {name: p.grad.full_tensor() for name, p in clipper.parameters.items()}
            assert all(total.dtype == torch.float32 for total in sums.values())
            assert bool((clipper.factors < 1).any())
            found.append({name: total.numpy() for name, total in sums.items()})
            clipper.close()
        length = sum((total.astype(np.float64) ** 2).sum() for total in found[2].values()) ** 0.5
        results.append((found[0], found[1], length / clipper.sensitivity))
    return results


HALVED = ("bk", "ghost", "per_layer")


def test_in_bfloat16_ranks_add_nothing_to_what_one_rounds():
    """Layers compute in bfloat16; norms and sums of what they computed are in float32."""
    for results in together(in_bfloat16, 2):
        for style, (several, single, length) in zip(HALVED, results, strict=True):
            scale = max(np.abs(total).max() for total in single.values())
            for name, total in single.items():
                np.testing.assert_allclose(
                    several[name], total, 1e-5, 1e-6 * scale, err_msg=f"{style} {name}"
                )
            assert length <= 1 + 1e-5
