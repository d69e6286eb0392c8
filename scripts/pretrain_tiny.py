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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent))
from public_e2e import ORDINARY, generate

from dpft.tasks.e2e import linearise

FOLDER = Path(__file__).parents[1] / "dpft" / "models" / "tiny"
LENGTH, BATCH, RATE = 256, 16, 2e-3
END = "<|endoftext|>"
# Token ids of a row, and where its target begins: the reference and the end token.
Example = tuple[list[int], int]


def texts(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on."""
    for mr, ref in rows:
        yield linearise(mr)
        yield " " + ref
    for word in ORDINARY:
        # Often enough to become one token, ahead of the pieces of made-up names.
        yield f" {word} {word.capitalize()}" * 150


def byte_level_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer; begin, end and padding are one token, `END`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator(texts, trainer)
    same = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **same, model_max_length=LENGTH)


def gpt2(tokenizer: Any) -> Any:
    """Return a GPT-2 with tied embeddings, random weights and no dropout."""
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=128, n_layer=2, n_head=4, n_positions=LENGTH,
        activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=end, eos_token_id=end, pad_token_id=end,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def encode(tokenizer: Any, rows: list[tuple[str, str]]) -> list[Example]:
    """Encode rows as prompt, end token, " " + reference, end token."""
    end = tokenizer.eos_token_id
    prompts = tokenizer([linearise(mr) for mr, _ in rows])["input_ids"]
    targets = tokenizer([" " + ref for _, ref in rows])["input_ids"]
    found = [([*p, end, *t, end], len(p) + 1) for p, t in zip(prompts, targets, strict=True)]
    return [example for example in found if len(example[0]) <= LENGTH]


def batches(examples: list[Example], rng: random.Random) -> Iterator[list[Example]]:
    """Shuffled batches of rows of similar length, so that little is spent on padding."""
    order = rng.sample(examples, len(examples))
    found = []
    for start in range(0, len(order), 50 * BATCH):
        pool = sorted(order[start : start + 50 * BATCH], key=lambda e: len(e[0]))
        found += [pool[i : i + BATCH] for i in range(0, len(pool), BATCH)]
    yield from rng.sample(found, len(found))


def target_loss(model: Any, batch: list[Example]) -> tuple[torch.Tensor, int]:
    """Loss summed over the batch's target tokens, and their number. Prompts are not predicted."""
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.full((len(batch), longest), model.config.eos_token_id)  # (B, T)
    real = torch.zeros_like(ids)
    predict = torch.zeros(ids.shape, dtype=torch.bool)  # positions whose next token is a target
    for row, (own, start) in enumerate(batch):
        ids[row, : len(own)] = torch.tensor(own)
        real[row, : len(own)] = 1
        predict[row, start - 1 : len(own) - 1] = True
    hidden = model.transformer(ids, attention_mask=real).last_hidden_state  # (B, T, d)
    logits = model.lm_head(hidden[predict])  # (targets, V): the head is a third of the work
    targets = ids.roll(-1, dims=1)[predict]
    return F.cross_entropy(logits, targets, reduction="sum"), len(targets)


@torch.no_grad()
def mean_loss(model: Any, examples: list[Example]) -> float:
    """Teacher-forced loss per target token, in nats."""
    model.eval()
    parts = [target_loss(model, examples[i : i + 64]) for i in range(0, len(examples), 64)]
    return sum(float(loss) for loss, _ in parts) / sum(n for _, n in parts)


def train(model: Any, examples: list[Example]) -> None:
    """Train in place for an epoch: AdamW, linear warm-up (5% of the steps) and decay."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98))
    total = math.ceil(len(examples) / BATCH)
    warmup = max(1, total // 20)
    model.train()
    for step, batch in enumerate(batches(examples, random.Random(0))):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((step + 1) / warmup, (total - step) / (total - warmup + 1))
        loss, count = target_loss(model, batch)
        optimizer.zero_grad()
        (loss / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            minutes = time.process_time() / 60
            print(f"step {step + 1}/{total}  {loss / count:.3f}  {minutes:.1f} CPU min", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Pretrain the bundled tiny model.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--rows", type=int, default=60_000, help="public rows to train on")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = generate("train", args.rows, 0)
    tokenizer = byte_level_tokenizer(texts(rows), 2560)
    torch.manual_seed(0)
    model: Any = gpt2(tokenizer)
    train(model, encode(tokenizer, rows))
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    loss = mean_loss(model, encode(tokenizer, generate("dev", 1000, 0)))
    print(f"saved to {args.folder}: {model.num_parameters():,} parameters, dev loss {loss:.4f}")


if __name__ == "__main__":
    main()
