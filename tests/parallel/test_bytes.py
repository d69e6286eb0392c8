"""What ranks send in a step, in bytes by kind: private training against training without."""

from collections import Counter
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from dpft.parallel.cohort import Replicas
from dpft.parallel.sharded import Shards, shard
from dpft.privacy import make_clipper
from tests.parallel.matrix import Case, built, losses
from tests.parallel.ranks import together

# Of each collective the argument that has all ranks' numbers.
KINDS = {
    "c10d::allreduce_": ("sum", 0),
    "_c10d_functional::all_reduce": ("sum", 0),
    "_c10d_functional::all_reduce_": ("sum", 0),
    "c10d::_allgather_base_": ("gather", 0),
    "c10d::_reduce_scatter_base_": ("scatter", 1),
    "_c10d_functional::reduce_scatter_tensor": ("scatter", 0),
}
STYLES = ("none", "bk", "per_layer_adaptive", "ghost")
MICROBATCHES = 2
SILENT = ("_c10d_functional::wait_tensor",)


class Traffic(TorchDispatchMode):
    """Counts calls and bytes of each kind of collective."""

    def __init__(self):
        super().__init__()
        self.calls, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, as tensors
        name = function._schema.name
        if "c10d" in name and name not in SILENT:
            kind, place = KINDS[name]
            tensors = arguments[place]
            for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
                self.calls[kind] += 1
                self.bytes[kind] += tensor.numel() * tensor.element_size()
        return function(*arguments, **(named or {}))


class Step(NamedTuple):
    """Of one step on one rank."""

    calls: dict[str, int]
    bytes: dict[str, int]
    groups: int
    numbers: int


def steps(cohort, layout):
    """The third step of each style, on one model: the two before are checked against autograd."""
    ranks = Shards() if layout == "fsdp" else Replicas()
    case = Case("bk", "gpt2", torch.float32)
    made = built(case)
    numbers = sum(parameter.numel() for parameter in made.model.parameters())
    if ranks.sharded:
        shard(made.model)
    counted = []
    for style in STYLES:
        case = Case(style, "gpt2", torch.float32)
        clipper = make_clipper(made.model, style, cohort=ranks, **case.options)
        for _ in range(3):
            for parameter in clipper.parameters.values():
                parameter.grad = None
            with Traffic() as traffic:
                for _ in range(MICROBATCHES):
                    clipper.backward(losses(case, made, [cohort.rank, 2 + cohort.rank]))
                clipper.collect()
        calls, sent = dict(traffic.calls), dict(traffic.bytes)
        counted.append(Step(calls, sent, len(clipper.groups) * bool(clipper.adaptive), numbers))
        clipper.close()
    return counted


def test_copies_send_what_training_without_privacy_sends_and_8_bytes_a_group():
    for none, *private in together(steps, 2, "data"):
        assert none.bytes == {"sum": 4 * none.numbers}  # once a step, however many microbatches
        for step in private:
            assert step.bytes == {"sum": none.bytes["sum"] + 8 * step.groups}
    assert max(step.groups for step in private) > 10


def test_shards_send_what_training_without_privacy_sends_and_8_bytes_a_group():
    for none, *private in together(steps, 2, "fsdp"):
        assert set(none.bytes) == {"gather", "scatter"}
        for style, step in zip(STYLES[1:], private, strict=True):
            assert step.bytes["scatter"] == none.bytes["scatter"], style
            # Its second backward gathers the parameters once more: docs/how-to/several_devices.md.
            again = none.bytes["scatter"] if style == "ghost" else 0
            assert step.bytes["gather"] == none.bytes["gather"] + again, style
            # Beside that, a microbatch's checks and calls are agreed on.
            assert step.bytes["sum"] == 8 * step.groups + 48 * MICROBATCHES, style
            assert step.calls["scatter"] <= none.calls["scatter"], style
