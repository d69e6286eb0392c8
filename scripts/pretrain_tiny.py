"""Make the bundled tiny model: a byte-level BPE tokenizer and a small GPT-2, from generated text.

    python scripts/pretrain_tiny.py            # writes dpft/models/tiny

Hardware and time: two threads of an Intel Xeon (--threads 2), 6.5 CPU minutes, dev loss 0.562.
The text is that of ``scripts/public_e2e.py``; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parent))
from pretraining import byte_level_tokenizer
from public_e2e import ORDINARY, generate

from dpft.tasks.e2e import linearise

FOLDER = Path(__file__).parents[1] / "dpft" / "models" / "tiny"
N_POSITIONS = 256
Row = tuple[str, str]
# Transformers types its tokenizers and models too loosely for a strict checker.
Tok = Any
Model = Any


def build_tokenizer(rows: list[Row], vocab_size: int) -> Tok:
    """Train a byte-level BPE tokenizer whose one special token is begin, end and padding."""

    def texts() -> Iterator[str]:
        for mr, ref in rows:
            yield linearise(mr)
            yield " " + ref
        for word in ORDINARY:
            # Often enough to become one token, ahead of the pieces of made-up names.
            yield f" {word} {word.capitalize()}" * 150

    return byte_level_tokenizer(texts(), vocab_size, N_POSITIONS)


def build_model(vocab_size: int, end: int) -> Model:
    """Return a GPT-2 with tied embeddings, about one million parameters, random weights."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=128,
        n_layer=2,
        n_head=4,
        n_positions=N_POSITIONS,
        activation_function="gelu_pytorch_tanh",
        # A tiny model underfits; dropout would also make per-example gradients random.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    return GPT2LMHeadModel(config)


@dataclass(frozen=True)
class Example:
    """Token ids of one row; ids from ``start`` on are the target (reference and end token)."""

    ids: list[int]
    start: int


def encode(tokenizer: Tok, rows: list[Row]) -> list[Example]:
    """Encode rows as prompt, end token, " " + reference, end token."""
    end = tokenizer.eos_token_id
    prompts = tokenizer([linearise(mr) for mr, _ in rows])["input_ids"]
    targets = tokenizer([" " + ref for _, ref in rows])["input_ids"]
    return [
        Example([*p, end, *t, end], len(p) + 1)
        for p, t in zip(prompts, targets, strict=True)
        if len(p) + len(t) + 2 <= N_POSITIONS
    ]


def batches(examples: list[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """Shuffled batches of rows of similar length, so that little is spent on padding."""
    order = rng.sample(examples, len(examples))
    pools = [order[i : i + 50 * size] for i in range(0, len(order), 50 * size)]
    found = []
    for pool in pools:
        pool.sort(key=lambda e: len(e.ids))
        found += [pool[i : i + size] for i in range(0, len(pool), size)]
    yield from rng.sample(found, len(found))


def target_loss(model: Model, batch: list[Example]) -> tuple[torch.Tensor, int]:
    """Loss summed over the batch's target tokens, and their number. Prompts are not predicted."""
    longest = max(len(e.ids) for e in batch)
    ids = torch.full((len(batch), longest), model.config.eos_token_id)  # (B, T)
    real = torch.zeros_like(ids)
    predict = torch.zeros(ids.shape, dtype=torch.bool)  # positions whose next token is a target
    for row, e in enumerate(batch):
        ids[row, : len(e.ids)] = torch.tensor(e.ids)
        real[row, : len(e.ids)] = 1
        predict[row, e.start - 1 : len(e.ids) - 1] = True
    hidden = model.transformer(ids, attention_mask=real).last_hidden_state  # (B, T, d)
    logits = model.lm_head(hidden[predict])  # (targets, V): the head is a third of the work
    targets = ids.roll(-1, dims=1)[predict]
    return F.cross_entropy(logits, targets, reduction="sum"), len(targets)


@torch.no_grad()
def mean_loss(model: Model, examples: list[Example]) -> float:
    """Teacher-forced loss per target token, in nats."""
    model.eval()
    parts = [target_loss(model, examples[i : i + 64]) for i in range(0, len(examples), 64)]
    return sum(float(loss) for loss, _ in parts) / sum(n for _, n in parts)


def train(
    model: Model,
    examples: list[Example],
    dev: list[Example],
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    log_every: int = 100,
) -> float:
    """Train in place with AdamW, linear warm-up (5% of steps) and decay; return the dev loss."""
    rng = random.Random(seed)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))
    total = epochs * math.ceil(len(examples) / batch_size)
    warmup = max(1, total // 20)
    begun, step, recent = time.process_time(), 0, [0.0, 0.0]
    for epoch in range(epochs):
        model.train()
        for batch in batches(examples, batch_size, rng):
            scale = min((step + 1) / warmup, (total - step) / (total - warmup + 1))
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            loss, count = target_loss(model, batch)
            optimizer.zero_grad()
            (loss / count).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            recent = [recent[0] + float(loss.detach()), recent[1] + count]
            if step % log_every == 0:
                minutes = (time.process_time() - begun) / 60
                print(
                    f"step {step}/{total}  loss {recent[0] / recent[1]:.3f}  {minutes:.1f} CPU min",
                    flush=True,
                )
                recent = [0.0, 0.0]
        print(f"epoch {epoch + 1}/{epochs}  dev loss {mean_loss(model, dev):.4f}", flush=True)
    return mean_loss(model, dev)


def load(folder: Path) -> tuple[Tok, Model]:
    """Load what was saved the way users do."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model: Model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    )
    # Transformers 5 can silently build an almost empty tokenizer.
    if len(tokenizer) != model.config.vocab_size:
        raise RuntimeError(
            f"got a tokenizer of {len(tokenizer)} tokens, expected {model.config.vocab_size}; "
            f"run scripts/pretrain_tiny.py again to rewrite {folder}"
        )
    return tokenizer, model


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Pretrain the bundled tiny model.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--rows", type=int, default=60_000, help="public rows to train on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--vocab-size", type=int, default=2560)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.disable_progress_bar()
    begun = time.process_time()
    rows = generate("train", args.rows, args.seed)
    tokenizer = build_tokenizer(rows, args.vocab_size)
    torch.manual_seed(args.seed)
    model = build_model(len(tokenizer), tokenizer.eos_token_id)
    examples = encode(tokenizer, rows)
    dev = encode(tokenizer, generate("dev", 1000, args.seed))
    print(
        f"vocabulary {len(tokenizer)}, parameters {model.num_parameters():,}, "
        f"rows {len(examples)}, "
        f"tokens per row {sum(len(e.ids) for e in examples) / len(examples):.1f}"
    )
    how = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr, "seed": args.seed}
    loss = train(model, examples, dev, **how)
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    load(args.folder)
    minutes = (time.process_time() - begun) / 60
    print(f"saved to {args.folder}: dev loss {loss:.4f}, {minutes:.1f} CPU minutes")


if __name__ == "__main__":
    main()
