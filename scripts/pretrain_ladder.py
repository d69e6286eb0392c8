"""Make a rung of the ladder: GPT-2 of three sizes, MiniLM's encoder with a masked-word head.

    python scripts/public_text.py TEXT --data $DPFT_DATA     # first: what they are trained on
    python scripts/pretrain_ladder.py 0.8m --text TEXT --out LADDER
    python scripts/pretrain_ladder.py minilm --text TEXT --out LADDER  # or minilm-2-masked
    python scripts/pretrain_ladder.py minilm-2 --out LADDER  # its first two blocks, untrained

Writes LADDER/tokenizer once, and LADDER/RUNG: a folder that `dpft train model=custom
model.path=LADDER/RUNG` loads, with `pretraining.json`, which says how it was made. All sizes share
tokenizer, text, order of the text and number of tokens. Killed at any moment, the same command
goes on from the last checkpoint and ends, on a CPU, at the same weights, bit by bit. `minilm-2`
takes seconds.
Hardware and hours of each rung: docs/how-to/ladder.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from dpft.config.flags import Flag, flag
from dpft.models.hub import find
from dpft.runs.lineage import written

END = "<|endoftext|>"
# Transformers types its models too loosely for a strict checker.
Model = Any
Tokens = np.ndarray[Any, np.dtype[np.uint16]]
Loss = Callable[[int], Iterator[Tensor]]  # of a step: its microbatches' losses, to be summed
EVERY = 180.0  # seconds between checkpoints
GENERATED = "e2e_sample"  # the one source that is no prose: for causal models only


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


RUNGS = {
    "0.8m": Recipe(3e-3, width=96, layers=3, heads=3),
    "3m": Recipe(2e-3, width=192, layers=5, heads=6),
    "12m": Recipe(1e-3, width=384, layers=6, heads=6),
    "minilm": Recipe(3e-4, vocabulary=30_522, length=128, tokens=7_000_000, batch=32, frozen=1 / 3),
    "minilm-2-masked": Recipe(
        5e-4, vocabulary=30_522, length=128, tokens=3_000_000, batch=32, frozen=1 / 3
    ),
}

# The packaged encoder that a rung begins with, and how many of its blocks are kept.
ENCODERS = {"minilm": ("minilm", 6), "minilm-2-masked": ("minilm", 2), "minilm-2": ("minilm", 2)}
# As they are.
CUT = ("minilm-2",)


def byte_level_tokenizer(texts: Iterable[str], vocabulary: int, length: int) -> Any:
    """A byte-level BPE tokenizer of the texts; begin, end and padding are one token, `END`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator(texts, trainer)
    same = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **same, model_max_length=length)


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


def train(
    model: Model, head: list[Tensor], losses: Loss, recipe: Recipe, checkpoint: Path, text: str
) -> dict[str, Any]:
    """Train in place from the last checkpoint on; return CPU seconds and the course of the loss.

    Args:
        losses: a step's, whatever came before: no state but the model's and the optimizer's.
        text: digest of the training text.

    Raises:
        SystemExit: if the checkpoint is of another recipe or another text.
    """
    settings, optimizer = asdict(recipe) | {"text": text}, optimizer_of(model, head)
    state: dict[str, Any] = {"step": 0, "cpu": 0.0, "course": [], "recent": []}
    if checkpoint.is_file():
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if state["settings"] != settings:
            sys.exit(f"{checkpoint} is of another recipe or text: choose another --out")
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
    cpu, saved = time.process_time() - state["cpu"], time.time()
    model.train()
    for step in range(state["step"], recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step, 0 if group["early"] else recipe.thaw)
        optimizer.zero_grad()
        total = 0.0
        for loss in losses(step):
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = step + 1 == recipe.steps
        state |= {"step": step + 1, "cpu": time.process_time() - cpu}
        state["recent"].append(total)
        if (step + 1) % max(1, recipe.steps // 50) == 0 or last:
            mean = sum(state["recent"]) / len(state["recent"])
            state["course"].append([step + 1, round(mean, 4)])
            state["recent"] = []
        if time.time() - saved >= EVERY or last:
            full = state | {"settings": settings, "model": model.state_dict()}
            torch.save(full | {"optimizer": optimizer.state_dict()}, scratch := f"{checkpoint}.tmp")
            Path(scratch).replace(checkpoint)  # all or nothing, whenever it is killed
            saved = time.time()
            minutes = state["cpu"] / 60
            print(f"step {step + 1}/{recipe.steps}  {total:.3f}  {minutes:.0f} CPU min", flush=True)
    return state


def documents(file: Path, *, generated: bool) -> Iterator[tuple[str, list[str]]]:
    """Source and parts of each document."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if generated or row["source"] != GENERATED:
                yield row["source"], row["parts"]


def encode(tokenizer: Any, file: Path, end: int, *, generated: bool) -> dict[str, Tokens]:
    """All documents as one row of token ids, every part followed by ``end``; and each source's."""
    rows: dict[str, list[int]] = {"": []}
    for source, parts in documents(file, generated=generated):
        for ids in tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]:
            for name in ("", source):
                rows.setdefault(name, []).extend([*ids, end])
    return {name: np.asarray(ids, np.uint16) for name, ids in rows.items()}


def causal_loss(model: Model, ids: Tensor) -> Tensor:
    """Mean over all tokens but each block's first."""
    logits = model(input_ids=ids[:, :-1]).logits  # (B, T - 1, V)
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def mask(ids: Tensor, tokenizer: Any, seed: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Blocks with 15% of their tokens to be guessed (8 in 10 masked, 1 replaced), and which."""
    draw = np.random.default_rng(list(seed)).random((2, *ids.shape))
    chosen, how = torch.from_numpy(draw[0]) < 0.15, torch.from_numpy(draw[1])
    other = (how * 1e9).long() % len(tokenizer)
    seen = torch.where(how < 0.8, tokenizer.mask_token_id, torch.where(how < 0.9, other, ids))
    inputs = torch.where(chosen, seen, ids)
    first = torch.full((len(ids), 1), tokenizer.cls_token_id)
    last = torch.full((len(ids), 1), tokenizer.sep_token_id)
    return torch.cat([first, inputs, last], 1), F.pad(chosen, (1, 1))


def masked_logits(model: Model, inputs: Tensor, chosen: Tensor, *, frozen: bool) -> Tensor:
    """Logits at the chosen places alone, shape ``(chosen, V)``."""
    with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
        hidden = model.bert(inputs, attention_mask=torch.ones_like(inputs)).last_hidden_state
    logits: Tensor = model.cls(hidden[chosen])
    return logits


@torch.no_grad()
def causal_scores(model: Model, rows: dict[str, Tokens], text: Path) -> dict[str, Any]:
    """Perplexity a token of the held-out text, of all its prose and source by source."""
    model.eval()
    width, scores = model.config.n_positions, {}
    for name, ids in rows.items():
        losses, count = [], 0
        for start in range(0, len(ids) - 1, width):
            block = torch.from_numpy(ids[start : start + width].astype(np.int64))[None]
            if block.shape[1] > 1:
                losses.append(
                    float(causal_loss(model, block.to(model.device))) * (block.shape[1] - 1)
                )
                count += block.shape[1] - 1
        scores[name or "all"] = {"tokens": count, "nll": sum(losses) / count}
    prose = [score for name, score in scores.items() if name not in ("all", GENERATED)]
    nll, count = sum(s["nll"] * s["tokens"] for s in prose), sum(s["tokens"] for s in prose)
    parts = [p for _, parts in documents(text / "heldout.jsonl", generated=False) for p in parts]
    bits = nll / math.log(2) / sum(map(len, parts))
    scores["prose"] = {"tokens": count, "nll": nll / count, "bits_per_character": bits}
    return {name: s | {"perplexity": math.exp(s["nll"])} for name, s in scores.items()}


@torch.no_grad()
def masked_scores(model: Model, ids: Tokens, tokenizer: Any, recipe: Recipe) -> dict[str, Any]:
    """Perplexity and accuracy of held-out words that were masked, the same ones every time."""
    model.eval()
    width = recipe.length - 2
    nll, right, count = 0.0, 0, 0
    for start in range(0, len(ids) // width * width, width):
        block = torch.from_numpy(ids[start : start + width].astype(np.int64))[None]
        inputs, chosen = (t.to(model.device) for t in mask(block, tokenizer, (1, start)))
        logits = masked_logits(model, inputs, chosen, frozen=False)
        words = F.pad(block, (1, 1)).to(model.device)[chosen]
        nll += float(F.cross_entropy(logits, words, reduction="sum"))
        right += int((logits.argmax(-1) == words).sum())
        count += len(words)
    return {"words": count, "perplexity": math.exp(nll / count), "accuracy": right / count}


def causal(name: str, recipe: Recipe, text: Path, out: Path) -> tuple[Model, Any]:
    """A GPT-2 with random weights, and the ladder's tokenizer."""
    if not (out / "tokenizer" / "tokenizer.json").is_file():
        parts = (p for _, parts in documents(text / "train.jsonl", generated=True) for p in parts)
        made = byte_level_tokenizer(parts, recipe.vocabulary, recipe.length)
        made.save_pretrained(out / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(out / "tokenizer")
    sizes = {"width": recipe.width, "layers": recipe.layers, "heads": recipe.heads}
    return gpt2(tokenizer, length=recipe.length, **sizes), tokenizer


def gpt2(tokenizer: Any, width: int, layers: int, heads: int, length: int) -> Model:
    """A GPT-2 with tied embeddings and drawn weights."""
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=width, n_layer=layers, n_head=heads, n_positions=length,
        activation_function="gelu_pytorch_tanh",
        # Small models that read each text once underfit: dropout would only slow them down.
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=end, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def masked(name: str, recipe: Recipe, text: Path, out: Path) -> tuple[Model, Any]:
    """A packaged encoder's first blocks with a new head whose output weights are its embeddings."""
    package, kept = ENCODERS[name]
    origin = find(package)[0]
    model = BertForMaskedLM.from_pretrained(
        # No dropout: so short a training does not overfit.
        origin, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, dtype=torch.float32
    )  # fmt: skip
    keep(model.bert, kept)
    return model, AutoTokenizer.from_pretrained(origin)


def keep(model: Model, blocks: int) -> None:
    """Leave the first blocks of an encoder."""
    del model.encoder.layer[blocks:]
    model.config.num_hidden_layers = len(model.encoder.layer)


def losses_of(model: Model, tokenizer: Any, ids: Tokens, recipe: Recipe) -> Any:
    """What `train` asks for: each step's losses, microbatch by microbatch."""

    def of_causal(step: int) -> Iterator[Tensor]:
        whole = blocks(ids, recipe.length, recipe, step).to(model.device)
        for micro in whole.split(recipe.micro):
            yield causal_loss(model, micro) * len(micro) / recipe.batch

    def of_masked(step: int) -> Iterator[Tensor]:
        whole = blocks(ids, recipe.length - 2, recipe, step)
        drawn = mask(whole, tokenizer, (0, recipe.seed, step))
        inputs, chosen = (t.to(model.device) for t in drawn)
        words = F.pad(whole, (1, 1)).to(model.device)
        # Frozen, the embeddings are so in the head as well.
        model.cls.predictions.decoder.weight.requires_grad_(step >= recipe.thaw)
        for i in range(0, recipe.batch, recipe.micro):
            at = slice(i, i + recipe.micro)
            logits = masked_logits(model, inputs[at], chosen[at], frozen=step < recipe.thaw)
            yield F.cross_entropy(logits, words[at][chosen[at]], reduction="sum") / chosen.sum()

    return of_causal if recipe.width else of_masked


def pretrain(name: str, recipe: Recipe, text: Path, out: Path, device: str) -> None:
    """Pretrain a rung, or go on with it."""
    folder = out / name
    if (folder / "pretraining.json").is_file():
        sys.exit(f"{folder} is done")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model, tokenizer = (causal if recipe.width else masked)(name, recipe, text, out)
    model.to(device)
    if not len(tokenizer) == model.config.vocab_size <= 65_536:
        sys.exit(f"got a tokenizer of {len(tokenizer)} tokens, expected {model.config.vocab_size}")
    end = tokenizer.eos_token_id if recipe.width else tokenizer.sep_token_id
    head = [] if recipe.width else list(model.cls.predictions.transform.parameters())
    head += [] if recipe.width else [model.cls.predictions.decoder.bias]
    rows = encode(tokenizer, text / "heldout.jsonl", end, generated=bool(recipe.width))
    ids = encode(tokenizer, text / "train.jsonl", end, generated=bool(recipe.width))[""]
    made_of = json.loads((text / "text.json").read_text(encoding="utf-8"))
    if not made_of["grams_of_tasks"]:
        sys.exit("the text was compared with no task's files: type scripts/public_text.py again")
    print(f"{name}: {model.num_parameters():,} parameters, {len(ids):,} tokens of text", flush=True)
    took = train(
        model, head, losses_of(model, tokenizer, ids, recipe), recipe,
        folder / "checkpoint.pt", made_of["train"]["sha256"],
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seen = recipe.steps * recipe.batch * recipe.length
    label = f"weights pretrained on {seen / 1e6:.0f} million tokens of scripts/public_text.py"
    (folder / "dpft.json").write_text(written([flag(Flag.NOTE, text=label)]), encoding="utf-8")
    if recipe.width:
        scores = causal_scores(model, rows, text)
    else:
        scores = masked_scores(model, rows[""], tokenizer, recipe)
    card = {
        "rung": name,
        "parameters": model.num_parameters(),
        "recipe": asdict(recipe) | {"steps": recipe.steps},
        "tokens_seen": seen,
        "tokens_of_text": len(ids),
        "text": made_of,
        "held_out": scores,
        "course": took["course"],
        "cpu_hours": took["cpu"] / 3600,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "sha256": {
            file: hashlib.sha256((folder / file).read_bytes()).hexdigest()
            for file in ("model.safetensors", "tokenizer.json")
        },
    }
    (folder / "pretraining.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "checkpoint.pt").unlink()
    print(json.dumps(card["held_out"], indent=1))


def cut(name: str, folder: Path) -> None:
    """Keep the first blocks of a packaged encoder."""
    origin, kept = ENCODERS[name]
    location = find(origin)[0]
    model = BertModel.from_pretrained(location, dtype=torch.float32)
    label = f"the first {kept} of {model.config.num_hidden_layers} blocks of package:{origin}"
    keep(model, kept)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(location).save_pretrained(folder)
    (folder / "dpft.json").write_text(written([flag(Flag.NOTE, text=label)]), encoding="utf-8")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Make a rung of the ladder.")
    parser.add_argument("rung", choices=[*RUNGS, *CUT])
    parser.add_argument("--text", type=Path, help="what public_text.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, help="default: the rung's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cuda: minutes, not the same bits twice")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.disable_progress_bar()
    if args.rung in CUT:
        cut(args.rung, args.out / args.rung)
        return
    if args.text is None:
        parser.error(f"{args.rung} is pretrained: type --text FOLDER, which public_text.py wrote")
    recipe = replace(RUNGS[args.rung], seed=args.seed)
    recipe = replace(recipe, tokens=args.tokens or recipe.tokens)
    pretrain(args.rung, recipe, args.text, args.out, args.device)


if __name__ == "__main__":
    main()
