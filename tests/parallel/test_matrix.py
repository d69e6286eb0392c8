"""Sums, norms and counts of several ranks are those of one process, whatever the layout.

A case is a style on a model. One launch of ranks goes through many of them, since starting ranks
and sharding a model cost more than a backward of these models.
"""

from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from dpft.parallel.cohort import Replicas
from dpft.parallel.sharded import Shards, shard
from dpft.privacy import make_clipper
from dpft.privacy.spec import STYLES, Partition
from tests.covering import covering
from tests.models.adapted import adapted
from tests.parallel.ranks import together
from tests.privacy import pairs
from tests.privacy.small_models import VOCAB, build

THRESHOLD = 0.5
UNITS = 7

GROUPS = {
    "uniform": Partition("uniform", 2),
    "two_group": Partition("two_group", boundary=1),
    "per_device": Partition("per_device", 2),
    "custom": Partition("custom", patterns=(("*.h.*",), ("*.wte.*", "*.wpe.*", "*.ln_f.*"))),
}
# All plans, of one group and of several, with fixed thresholds and with such as adapt.
EVERYWHERE = (
    *("none", "materialised", "lee_kifer", "ghost", "bk"),
    *("per_layer", "uniform", "per_layer_adaptive"),
)


class Case(NamedTuple):
    """What is trained, and how it is clipped."""

    style: str
    model: str
    dtype: torch.dtype = torch.float64
    clip_function: str = "abadi"

    @property
    def rows(self):
        """Of the model's batch for each unit."""
        return 2 if self.model.endswith("users") else 1

    @property
    def options(self):
        """Of `make_clipper`."""
        groups = GROUPS.get(self.style.removesuffix("_adaptive"))
        return {"threshold": THRESHOLD, "clip_function": self.clip_function, "groups": groups}


def _lora():
    """Pairs on some of Llama's matrices, both halves of each at work; the rest is frozen."""
    case, targets = build("llama"), ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=2, lora_alpha=4, target_modules=targets, init_lora_weights=False)
    case.model = get_peft_model(case.model, config).double().train()
    return case


def _checkpointed():
    """Activations are computed again in the backward; frozen embeddings' output is then a leaf."""
    case = build("gpt2")
    case.model.get_input_embeddings().requires_grad_(False)
    case.model.transformer.wpe.requires_grad_(False)
    case.model.enable_input_require_grads()
    case.model.activation_checkpointing_enable({"use_reentrant": False})
    return case


MODELS = {
    **{name: partial(build, name) for name in ("gpt2", "llama", "roberta_mlm", "vit")},
    **{f"{n} untied": partial(build, n, tied=False) for n in ("gpt2", "llama", "roberta_mlm")},
    "lora": _lora,
    "users": lambda: build("gpt2"),
    "lora users": _lora,
    "prefix": lambda: adapted("gpt2", "prefix")[0],
    "last block": lambda: adapted("llama", "top2")[0],
    "checkpointed": _checkpointed,
    "bart": lambda: pairs.padded("bart"),
    "t5": lambda: pairs.padded("t5"),
}

# Each layout's numbers of ranks.
SIZES = {"fsdp": (2, 3), "data": (2,)}


def _excluded(layout, style, model):
    """Of what is rare there are fewer; norms of T5 round to float32, to other digits in the
    reweighted backward of ghost clipping."""
    if model in tuple(MODELS)[:8]:
        return style not in EVERYWHERE and model != "gpt2"
    return style not in ("bk", "per_layer_adaptive", *(("ghost",) if model != "t5" else ()))


# Each layout has every style and every model, and some layout each style on each model.
CHOSEN = covering(tuple(SIZES), tuple(STYLES), tuple(MODELS), excluded=_excluded)


def cases(layout, size):
    """Of one launch: some of those of its layout."""
    own = [Case(*case) for place, *case in CHOSEN if place == layout]
    chosen = own[SIZES[layout].index(size) :: len(SIZES[layout])]
    if size == 2:
        single = torch.float32
        chosen += [Case("bk", name, single) for name in ("gpt2", "llama untied", "vit", "lora")]
        chosen += [Case(style, "roberta_mlm", single) for style in ("ghost", "per_layer_adaptive")]
        chosen.append(Case("bk", "gpt2", clip_function="automatic"))
    return sorted(chosen, key=lambda case: (case.model, str(case.dtype)))


def shares(size, number):
    """What each rank has of the units: uneven, and in every other case nothing at all on some.

    In the others each rank has one alone first, whose gradient is formed in another way in shards.
    """
    if number % 2:
        return [[], [0, 1, 2, 3, 4, 5, 6]] if size == 2 else [[0, 1], [], [6, 5, 4, 3, 2]]
    return [[2, 0, 5, 3], [6, 1, 4]] if size == 2 else [[4, 1], [5, 6, 0, 2], [3]]


def built(case):
    """The model, and as many rows for it as the units have, no two alike."""
    made = MODELS[case.model]()
    torch.manual_seed(5)
    rows = UNITS * case.rows
    index = torch.arange(rows) % made.batch
    data = {name: tensor[index].clone() for name, tensor in made.data.items()}
    for name, tensor in data.items():
        if tensor.is_floating_point():
            data[name] = (tensor + torch.randn_like(tensor)).to(case.dtype)
    if "input_ids" in data:
        ids = data["input_ids"]
        others = (ids + torch.arange(rows)[:, None]) % (VOCAB - 3) + 3
        data["input_ids"] = torch.where(ids == 1, ids, others)
    made.data = data
    made.model.to(case.dtype)
    return made


def losses(case, made, units):
    """Of these units, each the mean over its rows, times a number of its own."""
    index = [unit * case.rows + row for unit in units for row in range(case.rows)]
    each = made.losses(made.model, made.rows(index)).view(-1, case.rows).mean(1)
    return each * (0.2 + torch.tensor([unit % 5 for unit in units], dtype=each.dtype))


class Summed(NamedTuple):
    """What a clipper left on a process."""

    sums: dict[str, tuple[int, np.ndarray]]  # where the process' part of a parameter begins, and it
    below: np.ndarray | None  # counts below adaptive thresholds, if it has such
    norms: dict[int, np.ndarray]  # of each unit that the process had


def summed(case, made, pieces, cohort=None):
    """What a clipper makes of microbatches of units; an empty one has a record that is not real."""
    clipper = make_clipper(made.model, case.style, cohort=cohort, **case.options)
    norms = {}
    for units in pieces:
        real = None if units else torch.tensor([False])
        clipper.backward(losses(case, made, units or [0]), rows=case.rows, weights=real)
        norms |= dict(zip(units, clipper.norms.numpy(), strict=True))
    clipper.collect()
    sums = {}
    for name, parameter in clipper.parameters.items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        part, first = clipper.own_slice(parameter.grad.contiguous())
        sums[name] = first, part.numpy().copy()
        parameter.grad = None
    clipper.close()
    return Summed(sums, clipper.policy.below.numpy() if clipper.policy.rule else None, norms)


@cache
def one_process(case):
    return summed(case, built(case), ([0, 1, 2, 3, 4], [5, 6]))


def added_up(cohort, layout, given):
    """What each case leaves on this rank."""
    ranks = Replicas() if layout == "data" else Shards()
    held, made, results = None, None, []
    for case, parts in given:
        if held != (case.model, case.dtype):
            held, made = (case.model, case.dtype), built(case)
            if ranks.sharded:
                shard(made.model)
        mine, at = parts[ranks.rank], 1 if all(parts) else 4
        pieces = [piece for piece in (mine[:at], mine[at:]) if piece or ranks.sharded]
        results.append(summed(case, made, pieces, ranks))
    return results


def check(case, ranks):
    """That what the ranks hold together is what one process has."""
    expected = one_process(case)
    if case.style != "none":  # equal sums would prove little if no unit were clipped
        whole = np.stack(list(expected.norms.values()))
        of_group = THRESHOLD if "adaptive" in case.style else THRESHOLD / whole.shape[1] ** 0.5
        assert (whole > of_group).any(), case
    exact = case.dtype == torch.float64
    relative = 1e-10 if exact else 1e-5
    scale = max(np.abs(whole).max() for _, whole in expected.sums.values())
    absolute = (1e-12 if exact else 1e-6) * max(scale, 1.0)
    for name, (_, whole) in expected.sums.items():
        got = np.full_like(whole, np.nan)
        for first, part in (rank.sums[name] for rank in ranks):
            before = got[first : first + len(part)]
            # Copies are the same bits.
            assert ((before == part) | np.isnan(before)).all(), (case, name)
            got[first : first + len(part)] = part
        assert not np.isnan(got).any(), f"{case} {name}: ranks do not hold all of it"
        np.testing.assert_allclose(got, whole, relative, absolute, err_msg=f"{case} {name}")
    norms = {unit: norm for rank in ranks for unit, norm in rank.norms.items()}
    assert norms.keys() == expected.norms.keys()
    # Of nothing at all a norm is what underflow may have hidden, which depends on the form.
    both = [norms[unit] for unit in norms], [expected.norms[unit] for unit in norms]
    np.testing.assert_allclose(*both, relative, 1e-15, err_msg=f"{case}")
    for rank in ranks:
        assert np.array_equal(rank.below, expected.below), case


@pytest.mark.parametrize(("layout", "size"), [("fsdp", 2), ("fsdp", 3), ("data", 2)])
def test_sums_are_those_of_one_process(layout, size):
    given = [(case, shares(size, number)) for number, case in enumerate(cases(layout, size))]
    ranks = together(added_up, size, layout, given)
    for (case, _), results in zip(given, zip(*ranks, strict=True), strict=True):
        check(case, results)
