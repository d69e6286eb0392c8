"""Cutting a language model into the stages of a pipeline.

A stage is the whole model with the modules of the other stages taken out: its own keep the names of
their parameters, which noise and checkpoints go by, and the model's own forward computes masks,
positions and rotations. Stages are the clipping groups of ``per_device``: one process that clips by
these groups has the sums and the noise of the pipeline.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpft.config.errors import ConfigError
from dpft.privacy.clipping.groups import partition
from dpft.privacy.spec import Partition


class Anatomy(NamedTuple):
    """Names of a class of models' modules, in the order of its forward."""

    first: tuple[str, ...]  # make hidden states of tokens; the table of tokens is first
    positions: tuple[str, ...]  # of these, those added to the hidden states that come in
    blocks: str  # the list of blocks, each of which takes hidden states first and returns them
    last: tuple[str, ...]  # follow the last block, each from one tensor to one tensor


_LLAMA = Anatomy(("model.embed_tokens",), (), "model.layers", ("model.norm", "lm_head"))
_KNOWN = MappingProxyType(
    {
        "GPT2LMHeadModel": Anatomy(
            ("transformer.wte", "transformer.wpe", "transformer.drop"),
            ("transformer.wpe",),
            "transformer.h",
            ("transformer.ln_f", "lm_head"),
        ),
        "LlamaForCausalLM": _LLAMA,
        "MistralForCausalLM": _LLAMA,
        "Qwen2ForCausalLM": _LLAMA,
    }
)
"""By the class of transformers; each was read and is tested. One that scales hidden states between
embedding, blocks and head (Gemma, Granite) would do so on every stage."""


@dataclass(frozen=True)
class Cut:
    """The places where a model is cut."""

    anatomy: Anatomy  # of the model proper
    prefix: str  # of the names of its modules, within adapters
    starts: tuple[int, ...]  # the first block of each stage
    stage_of: Mapping[str, int]  # by the name of each trained parameter, in the model's order
    width: int  # of the hidden states that stages hand on
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.starts)


def cut(model: nn.Module, how: Partition) -> Cut:
    """Cut a causal language model, adapted or not, into a number of ``per_device`` groups.

    Raises:
        ConfigError: if the class is not known, or something trained has no place in a stage.
        ValueError: if the partition does not fit the model.
    """
    if how.patterns:
        raise ConfigError(
            "clip.patterns with parallel=pipeline; expected the number of stages: type "
            "clip.patterns=null clip.count=N"
        )
    prefix, anatomy = _anatomy(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    devices = enumerate(partition(model, trained, how))
    stage_of = {name: k for k, (_, own) in devices for name in own}
    stage_of = {name: stage_of[name] for name in trained}
    count = max(stage_of.values()) + 1
    blocks = len(list(model.get_submodule(prefix + anatomy.blocks).children()))
    _check_trained(trained, model, prefix, anatomy)
    if not 2 <= count <= blocks:
        raise ConfigError(
            f"{count} pipeline stages of {blocks} blocks; expected two stages or more, with a "
            "block each: start another number of processes, or type parallel=data"
        )
    # A stage starts with its first trained block: the others stay with the one before them.
    starts, within = {0: 0}, f"{prefix}{anatomy.blocks}."
    for name, stage in stage_of.items():
        if name.startswith(within):
            number = int(name.removeprefix(within).split(".")[0])
            starts[stage] = min(starts.get(stage, number), number)
    table: Any = model.get_submodule(prefix + anatomy.first[0])
    firsts = tuple(starts[stage] for stage in range(count))
    width, dtype = table.weight.shape[1], table.weight.dtype
    return Cut(anatomy, prefix, firsts, MappingProxyType(stage_of), width, dtype)


def _anatomy(model: nn.Module) -> tuple[str, Anatomy]:
    """Return the prefix of the model proper within its adapters, and its anatomy."""
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__name__ in _KNOWN and kind.__module__.startswith("transformers.models."):
            return (f"{name}." if name else ""), _KNOWN[kind.__name__]
    raise ConfigError(
        f"parallel=pipeline does not know where {type(model).__name__} can be cut; expected one of "
        f"{', '.join(_KNOWN)}: type parallel=data or parallel=fsdp"
    )


def _check_trained(
    trained: Mapping[str, nn.Parameter], model: nn.Module, prefix: str, anatomy: Anatomy
) -> None:
    """Refuse trained parameters of no stage (a prefix, a scorer), or of the first and the last."""
    pieces, kind = (*anatomy.first, anatomy.blocks, *anatomy.last), type(model).__name__
    known = tuple(f"{prefix}{piece}." for piece in pieces)
    first, last = (
        {id(p) for piece in ends for p in model.get_submodule(prefix + piece).parameters()}
        for ends in (anatomy.first, anatomy.last)
    )
    for name, parameter in trained.items():
        if not name.startswith(known):
            raise ConfigError(
                f"parallel=pipeline does not know which stage {name} of {kind} belongs to; "
                f"expected trained parameters in {', '.join(pieces)} only: type adapt=full, "
                "adapt=lora or parallel=data"
            )
        if id(parameter) in first & last:
            raise ConfigError(
                f"{name} is input embedding and output head of {kind}: the first stage and the "
                "last would each clip a part of one gradient; type model.tied=false, which gives "
                "the head a separate copy"
            )


def part_of(model: nn.Module, cut: Cut, stage: int) -> nn.Module:
    """Return one stage of a model, which shares its tensors with the whole.

    It is called like the whole, but stages after the first take ``inputs_embeds``, the hidden
    states ``(B, T, d)`` of the stage before, in place of ``input_ids``, and the ``logits`` of
    stages before the last are hidden states.
    """
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    part: nn.Module = copy.deepcopy(model, tensors)
    anatomy, prefix = cut.anatomy, cut.prefix
    blocks: Any = part.get_submodule(prefix + anatomy.blocks)
    end = (*cut.starts[1:], len(blocks))[stage]
    for number in range(len(blocks)):
        if not cut.starts[stage] <= number < end:
            blocks[number] = _Elsewhere()
    for name in anatomy.first if stage > 0 else ():
        elsewhere = _NoPositions() if name in anatomy.positions else _Elsewhere()
        part.set_submodule(prefix + name, elsewhere)
    for name in anatomy.last if stage < cut.count - 1 else ():
        part.set_submodule(prefix + name, _Elsewhere())
    held = {name for name, p in part.named_parameters() if p.requires_grad}
    expected = {name for name, owner in cut.stage_of.items() if owner == stage}
    if held != expected:
        raise AssertionError(f"stage {stage} holds {held ^ expected} or lacks it")
    return part


def leave_others(model: nn.Module, part: nn.Module) -> None:
    """Free the memory of the parameters that are not in this stage; they keep their names."""
    held = {id(parameter) for parameter in part.parameters()}
    empty: dict[int, nn.Parameter] = {}  # by id of the old one: tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in held:
                shape = torch.empty_like(parameter, device="meta")
                fresh = nn.Parameter(shape, requires_grad=parameter.requires_grad)
                module._parameters[name] = empty.setdefault(id(parameter), fresh)


class _Elsewhere(nn.Module):
    """The identity, in the place of a module of another stage."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class _NoPositions(nn.Module):
    """Zero, in the place of an embedding of positions, which another stage has added."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros((), device=positions.device)


class Share(nn.Module):
    """A stage that losses can call like the whole model.

    On the last stage they get the logits that they ask for; on any other their call ends with the
    stage's hidden states.
    """

    def __init__(self, part: nn.Module, first: bool, last: bool) -> None:
        super().__init__()
        self.part = part
        self._first = first
        self._last = last
        self._received: Tensor | None = None

    def run(self, losses: Any, received: Sequence[Tensor]) -> Tensor:
        """Return the losses of a microbatch on the last stage, else hidden states ``(B, T, d)``.

        Args:
            losses: called with a model, which it calls once; returns its losses.
            received: the hidden states that came in, ``(B, T, d)``; empty on the first stage.
        """
        self._received = None if self._first else received[0]
        try:
            found: Tensor = losses(self)
        except _ReachedError as reached:
            return reached.hidden
        finally:
            self._received = None
        return found

    def forward(self, input_ids: Tensor, **asked: Any) -> Any:
        inputs = {"input_ids": input_ids}
        if self._received is not None:
            inputs = {"inputs_embeds": self._received}
        if self._last:
            return self.part(**inputs, **asked)
        if "logits_to_keep" in asked:
            asked["logits_to_keep"] = 0  # all positions go on
        raise _ReachedError(self.part(**inputs, **asked).logits)


class _ReachedError(Exception):
    """Carries hidden states out of losses that are computed on another stage."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden
