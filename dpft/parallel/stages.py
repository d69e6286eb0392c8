"""Cutting a language model into the stages of a pipeline.

A stage is the whole model with the modules of the other stages taken out: its own keep their place,
and so the names of their parameters, which noise and checkpoints go by. What is left runs the
model's own forward, from hidden states to hidden states: every stage computes masks, positions and
rotations as the model does.

Stages are cut between blocks, as the clipping groups of ``per_device`` are: one process that clips
by these groups has the sums and the noise of the pipeline.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpft.config.errors import ConfigError
from dpft.privacy.clipping.groups import partition
from dpft.privacy.spec import Partition


class Anatomy(NamedTuple):
    """Where the pieces of a class of models are, by the names of its modules.

    Attributes:
        first: what makes hidden states of tokens, and is not to run where hidden states come in;
            the table of tokens is first.
        positions: of these, what is added to the hidden states that come in.
        blocks: the list of blocks, each of which takes hidden states first and returns them.
        last: what follows the last block, each from one tensor to one tensor.
    """

    first: tuple[str, ...]
    positions: tuple[str, ...]
    blocks: str
    last: tuple[str, ...]


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
    """Where a model is cut.

    Attributes:
        anatomy: of the model proper.
        prefix: what precedes the names of its modules, within adapters.
        starts: the block that each stage begins with.
        stage_of: of each trained parameter of the whole model, by name and in its order.
        width: of the hidden states that stages hand on, ``d``.
        dtype: likewise.
    """

    anatomy: Anatomy
    prefix: str
    starts: tuple[int, ...]
    stage_of: Mapping[str, int]
    width: int
    dtype: torch.dtype

    @property
    def count(self) -> int:
        """How many stages there are."""
        return len(self.starts)


def cut(model: nn.Module, how: Partition) -> Cut:
    """Cut a model into the devices of a partition.

    Args:
        model: a causal language model of transformers, with or without peft's adapters.
        how: ``per_device``, with the number of stages or the patterns of their parameters.

    Raises:
        ConfigError: if the class is not known, something is trained that has no place in a stage,
            or a device is not a run of whole blocks.
        ValueError: if the partition does not fit the model.
    """
    prefix, anatomy = _anatomy(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    stage_of = {
        name: k for k, (_, own) in enumerate(partition(model, trained, how)) for name in own
    }
    stage_of = {name: stage_of[name] for name in trained}
    count = max(stage_of.values()) + 1
    blocks = len(list(_within(model, prefix, anatomy.blocks).children()))
    _check_trained(trained, model, prefix, anatomy)
    _check_tied(trained, model, prefix, anatomy)
    if not 2 <= count <= blocks:
        raise ConfigError(
            f"{count} pipeline stages of {blocks} blocks; expected two stages or more, with a "
            "block each: start another number of processes, or type parallel=data"
        )
    stages_of_blocks: list[set[int]] = [set() for _ in range(blocks)]
    for name, stage in stage_of.items():
        number = _place(name, prefix, anatomy, blocks)
        stages_of_blocks[number].add(stage)
    starts: list[int] = []
    for number, stages in enumerate(stages_of_blocks):
        before = len(starts) - 1
        stages = stages or {max(before, 0)}  # a block that is not trained stays with the last one
        if stages == {before + 1}:
            starts.append(number)
        elif stages != {before}:
            fitting = sorted({max(before, 0), before + 1})
            raise ConfigError(
                f"block {number} of {anatomy.blocks} lies on devices {sorted(stages)}; expected "
                f"one of {fitting}: each device is a run of whole blocks, the first with the "
                f"embeddings and the last with norm and head. Type clip.count={count} "
                "clip.patterns=null"
            )
    table: Any = _within(model, prefix, anatomy.first[0])
    width, dtype = table.weight.shape[1], table.weight.dtype
    return Cut(anatomy, prefix, tuple(starts), MappingProxyType(stage_of), width, dtype)


def part_of(model: nn.Module, cut: Cut, stage: int) -> nn.Module:
    """One stage of a model, which shares its tensors with the whole.

    Args:
        model: without hooks of a clipper. It stays as it is.
        cut: from `cut`.
        stage: its number.

    Returns:
        A module to be called as the whole is. But for the first stage it takes ``inputs_embeds``,
        the hidden states ``(B, T, d)`` of the stage before, in place of ``input_ids``; but for the
        last its ``logits`` are hidden states.
    """
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    part: nn.Module = copy.deepcopy(model, tensors)
    anatomy, prefix = cut.anatomy, cut.prefix
    blocks: Any = _within(part, prefix, anatomy.blocks)
    end = (*cut.starts[1:], len(blocks))[stage]
    for number in range(len(blocks)):
        if not cut.starts[stage] <= number < end:
            blocks[number] = Elsewhere()
    if stage > 0:
        for name in anatomy.first:
            part.set_submodule(
                prefix + name, NoPositions() if name in anatomy.positions else Elsewhere()
            )
    if stage < cut.count - 1:
        for name in anatomy.last:
            part.set_submodule(prefix + name, Elsewhere())
    held = {name for name, p in part.named_parameters() if p.requires_grad}
    expected = {name for name, owner in cut.stage_of.items() if owner == stage}
    if held != expected:
        raise AssertionError(f"stage {stage} holds {held ^ expected} or lacks it")
    return part


def leave_others(model: nn.Module, parts: Iterable[nn.Module]) -> None:
    """Take values and memory from the parameters of a model that are in none of these stages.

    They keep names, shapes and order, by which ranks and checkpoints go.

    Args:
        model: what the stages are of.
        parts: the stages of this process, see `part_of`.
    """
    held = {id(parameter) for part in parts for parameter in part.parameters()}
    empty: dict[int, nn.Parameter] = {}  # by what it stands for: tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in held:
                shape = torch.empty_like(parameter, device="meta")
                fresh = nn.Parameter(shape, requires_grad=parameter.requires_grad)
                module._parameters[name] = empty.setdefault(id(parameter), fresh)


class Elsewhere(nn.Module):
    """In the place of a module of another stage: what comes in goes out."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


class NoPositions(nn.Module):
    """In the place of an embedding of positions, which another stage has added."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros((), device=positions.device)


class Share(nn.Module):
    """Called as the whole model is; does the share of one stage.

    Losses are written for a whole model. On the last stage they get the logits that they ask for;
    on any other their call goes no further than the stage's hidden states, which `hidden` returns.
    """

    def __init__(self, part: nn.Module, first: bool, last: bool) -> None:
        super().__init__()
        self.part = part
        self._first = first
        self._last = last
        self._received: Tensor | None = None

    def run(self, losses: Any, received: Sequence[Tensor]) -> Tensor:
        """What this stage makes of a microbatch.

        Args:
            losses: called with a model, which it calls once; returns its losses.
            received: the hidden states that came in, ``(B, T, d)``; empty on the first stage.

        Returns:
            The losses on the last stage, else hidden states ``(B, T, d)``.
        """
        self._received = None if self._first else received[0]
        try:
            found: Tensor = losses(self)
        except _ReachedError as reached:
            return reached.hidden
        finally:
            self._received = None
        if not self._last:
            raise AssertionError("losses without a call of the model")
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


def _anatomy(model: nn.Module) -> tuple[str, Anatomy]:
    """The model proper within its adapters: what precedes its modules' names, and its anatomy."""
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__name__ in _KNOWN and kind.__module__.startswith("transformers.models."):
            return (f"{name}." if name else ""), _KNOWN[kind.__name__]
    raise ConfigError(
        f"parallel=pipeline does not know where {type(model).__name__} can be cut; expected one of "
        f"{', '.join(_KNOWN)}: type parallel=data or parallel=fsdp"
    )


def _within(model: nn.Module, prefix: str, name: str) -> nn.Module:
    return model.get_submodule(prefix + name)


def _place(name: str, prefix: str, anatomy: Anatomy, blocks: int) -> int:
    """The number of the block that a parameter is with; what precedes all is with the first."""
    inner = name.removeprefix(prefix)
    if inner.startswith(f"{anatomy.blocks}."):
        return int(inner.removeprefix(f"{anatomy.blocks}.").split(".")[0])
    return 0 if any(_inside(inner, module) for module in anatomy.first) else blocks - 1


def _inside(name: str, module: str) -> bool:
    return name.startswith(f"{module}.")


def _check_trained(
    trained: Mapping[str, nn.Parameter], model: nn.Module, prefix: str, anatomy: Anatomy
) -> None:
    """Refuse trained parameters that are in no piece: a prefix, a scorer."""
    pieces = (*anatomy.first, anatomy.blocks, *anatomy.last)
    for name in trained:
        inner = name.removeprefix(prefix)
        if not name.startswith(prefix) or not any(_inside(inner, piece) for piece in pieces):
            raise ConfigError(
                f"parallel=pipeline does not know which stage {name} of {type(model).__name__} "
                f"belongs to; expected trained parameters in {', '.join(pieces)} only: type "
                "adapt=full, adapt=lora or parallel=data"
            )


def _check_tied(
    trained: Mapping[str, nn.Parameter], model: nn.Module, prefix: str, anatomy: Anatomy
) -> None:
    """Refuse a trained parameter that the first stage and the last would both use."""

    def used_by(names: Sequence[str]) -> Iterator[nn.Parameter]:
        for name in names:
            yield from _within(model, prefix, name).parameters()

    first = {id(parameter) for parameter in used_by(anatomy.first)}
    for parameter in used_by(anatomy.last):
        if id(parameter) in first and parameter.requires_grad:
            name = next(name for name, p in trained.items() if p is parameter)
            raise ConfigError(
                f"{name} is input embedding and output head of {type(model).__name__}: the first "
                "stage and the last would each clip a part of one gradient; type model.tied=false, "
                "which gives the head a copy of its own"
            )
