"""A pretraining run that may be killed at any moment: recipe, order of the text, checkpoints.

And the tokenizer of what is pretrained.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
# Transformers types its models too loosely for a strict checker.
Model = Any
Tokens = np.ndarray[Any, np.dtype[np.uint16]]
Loss = Callable[[int], Iterator[Tensor]]  # of a step: its microbatches' losses, to be summed


def byte_level_tokenizer(texts: Iterable[str], vocabulary: int, length: int) -> Any:
    """A byte-level BPE tokenizer of the texts; begin, end and padding are one token, `END`.

    Args:
        vocabulary: how many tokens at most.
        length: of what a model reads, in tokens.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        model_max_length=length,
    )


@dataclass(frozen=True)
class Recipe:
    """How one rung is pretrained.

    Attributes:
        lr: the highest; warmed up over 3% of the steps, then a half cosine to a tenth.
        tokens: read in all, in blocks of ``length``, each once while there are new ones.
        batch: blocks a step, ``micro`` at a time.
        frozen: the share of the steps that train the new head alone (masked words only).
    """

    lr: float
    width: int = 0
    layers: int = 0
    heads: int = 0
    vocabulary: int = 4096
    length: int = 256
    tokens: int = 16_000_000
    batch: int = 16
    micro: int = 8
    frozen: float = 0.0
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.tokens // (self.length * self.batch)

    @property
    def thaw(self) -> int:
        """The first step that trains all weights."""
        return round(self.frozen * self.steps)

    def rate(self, step: int, begin: int = 0) -> float:
        """The learning rate, for parameters that begin to move at step ``begin``."""
        if step < begin:
            return 0.0
        done, total = step - begin, self.steps - begin
        warm = (done + 1) / max(1, round(0.03 * total))
        return self.lr * min(warm, 0.55 + 0.45 * math.cos(math.pi * done / total))


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, number: int) -> Any:
    return np.random.default_rng([seed, epoch]).permutation(number)


def blocks(ids: Tokens, width: int, recipe: Recipe, step: int) -> Tensor:
    """Token ids of a step's blocks, ``(batch, width)``; every epoch has an order of its own."""
    number = len(ids) // width
    rows = []
    for i in range(step * recipe.batch, (step + 1) * recipe.batch):
        start = _order(recipe.seed, i // number, number)[i % number] * width
        rows.append(ids[start : start + width])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def optimizer_of(model: Model, head: list[Tensor]) -> torch.optim.Optimizer:
    """AdamW; matrices decay. The new head moves from the start; without one, everything does."""
    own = {id(p) for p in head or model.parameters()}
    groups = []
    for early in (True, False):
        chosen = [p for p in model.parameters() if (id(p) in own) is early]
        for decay, matrices in ((0.1, True), (0.0, False)):
            params = [p for p in chosen if (p.dim() > 1) is matrices]
            if params:
                groups.append({"params": params, "weight_decay": decay, "early": early})
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))


def save(state: dict[str, Any], file: Path) -> None:
    """All or nothing, whenever it is killed."""
    scratch = file.with_suffix(".tmp")
    with scratch.open("wb") as out:
        torch.save(state, out)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(file)


def train(
    model: Model,
    optimizer: torch.optim.Optimizer,
    losses: Loss,
    recipe: Recipe,
    checkpoint: Path,
    *,
    text: str,
    every: float,
) -> dict[str, Any]:
    """Train in place from the last checkpoint on; return what it took and the course of the loss.

    Args:
        losses: a step's, whatever came before: no state but the model's and the optimizer's.
        text: digest of the training text.
        every: seconds between checkpoints.

    Raises:
        SystemExit: if the checkpoint is of another recipe or another text.
    """
    settings = asdict(recipe) | {"text": text}
    state: dict[str, Any] = {"step": 0, "cpu": 0.0, "course": [], "recent": [0.0, 0]}
    if checkpoint.is_file():
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if state["settings"] != settings:
            raise SystemExit(
                f"{checkpoint} is of another recipe or text: got {state['settings']}, expected "
                f"{settings}; delete its folder or choose another --out"
            )
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
        print(f"goes on from step {state['step']}", flush=True)
    per_step = recipe.length * recipe.batch
    cpu, before, begun, first = time.process_time(), state["cpu"], time.time(), state["step"]
    saved = begun
    model.train()
    while state["step"] < recipe.steps:
        step = state["step"]
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step, 0 if group["early"] else recipe.thaw)
        optimizer.zero_grad()
        total = 0.0
        for loss in losses(step):
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        state["step"] = step + 1
        state["cpu"] = before + time.process_time() - cpu
        state["recent"] = [state["recent"][0] + total, state["recent"][1] + 1]
        if (step + 1) % max(1, recipe.steps // 50) == 0 or step + 1 == recipe.steps:
            mean = state["recent"][0] / state["recent"][1]
            state["course"].append([step + 1, round(mean, 4)])
            state["recent"] = [0.0, 0]
        now = time.time()
        if now - saved >= every or step + 1 == recipe.steps:
            full = state | {"settings": settings, "model": model.state_dict()}
            save(full | {"optimizer": optimizer.state_dict()}, checkpoint)
            saved = now
            speed = (step + 1 - first) * per_step / (now - begun)
            busy = (step + 1) * per_step / state["cpu"]
            left = (recipe.steps - step - 1) * per_step / speed / 60
            print(
                f"step {step + 1}/{recipe.steps}  loss {total:.3f}  {speed:.0f} tokens/s "
                f"({busy:.0f} a CPU second)  {left:.0f} minutes left",
                flush=True,
            )
    return state
