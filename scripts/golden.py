"""Record what dpft computes, so that a change of its structure can be held against it.

    python scripts/golden.py golden.json            # record; --only PART: runs of such names
    python scripts/golden.py golden.json --check    # compute again and list every difference

Forty short runs with a fixed noise seed cover the clipping algorithms and groupings, users, the
adaptations, the kinds of models, sampling, bfloat16, ``PrivateTrainer`` and two ranks. The file has
digests of their weights and noisy gradients, their scores and epsilons, digests of the papers'
tables, and the verdict on each claim. Digests depend on the processor and on the versions of the
packages; ``norm`` and the scores can be compared between machines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMON = [
    *("task.source=sample", "task.limit_train=24", "task.limit_eval=3", "threads=1", "seed=3"),
    *("privacy.noise_seed=1", "privacy.noise_multiplier=1", "optim.batch_size=6", "optim.steps=4"),
]
TEXT = ["task=e2e", "model=random-gpt2", "decode=greedy", "decode.max_new_tokens=8"]
CLASSES = ["task=sst2", "model=random-bert"]
IMAGES = ["task=cifar10", "model=random-vit"]
PIPELINE = ["parallel=pipeline", "ranks=2", "clip=per_device", "model.tied=false"]

CLIPS = [
    *("none", "ghost", "bk", "materialised", "lee_kifer", "per_layer", "per_param", "block_wise"),
    *("by_type", "by_type", "uniform", "two_group", "custom", "per_device"),
    *("flat_adaptive", "per_layer_adaptive", "per_device_adaptive"),
]
RUNS: dict[str, list[str]] = {
    **{f"gpt2-{clip}": [*TEXT, f"clip={clip}"] for clip in CLIPS},
    "bert-ghost": [*CLASSES, "clip=ghost"],
    "bert-infill": [*CLASSES, "clip=bk", "task.mode=infill"],
    "roberta-per-layer": ["task=mnli", "model=random-roberta", "clip=per_layer"],
    "llama-bk": ["task=dart", *TEXT[2:], "model=random-llama", "clip=bk"],
    "t5-bk": ["task=samsum", *TEXT[2:], "model=random-t5", "clip=bk"],
    "bart-ghost": [*TEXT, "model=random-bart", "clip=ghost"],
    "personachat": ["task=personachat", *TEXT[1:], "clip=bk"],
    "vit-bk": [*IMAGES, "clip=bk"],
    "wrn-per-layer-adaptive": [*IMAGES, "model=random-wrn", "clip=per_layer_adaptive"],
    "lora-ghost": [*TEXT, "adapt=lora", "clip=ghost"],
    "rgp-bk": [*TEXT, "adapt=rgp", "clip=bk"],
    "prefix-bk": [*TEXT, "adapt=prefix", "clip=bk"],
    "bias-bk": [*CLASSES, "adapt=bias", "clip=bk"],
    "top2-bk": [*CLASSES, "adapt=top2", "clip=bk"],
    "automatic": [*TEXT, "clip=bk", "clip.clip_function=automatic"],
    "accumulation": [*TEXT, "clip=bk", "optim.microbatch_tokens=200"],
    "bfloat16": [*TEXT, "clip=bk", "precision=bfloat16"],
    "truncated": [*CLASSES, "clip=bk", "sampling=truncated_poisson"],
    "shuffle": [*CLASSES, "clip=bk", "sampling=shuffle"],
    "epsilon": [*CLASSES, "clip=bk", "privacy.noise_multiplier=null", "eps=3"],
    "data-2": [*TEXT, "clip=bk", "parallel=data", "ranks=2"],
    "fsdp-2": [*TEXT, "clip=per_layer", "parallel=fsdp", "ranks=2"],
    "pipeline-2": [*TEXT, *PIPELINE, "clip.count=2"],
}
USERS = ["task=classification", "model=random-bert", "clip=bk", "task.unit=user"]
USERS += ["task.user_column=who", "task.classes=[a,b]", "task.test_share=0.2"]
USERS += ["task.limit_train=null", "task.source=auto"]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def weights(folder: Path) -> dict[str, Any]:
    """Return a digest of the tensors by name, and their Euclidean norm."""
    from safetensors.numpy import load_file

    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    parts = [name.encode() + tensor.tobytes() for name, tensor in sorted(tensors.items())]
    norm = math.sqrt(sum(float((t.astype("float64") ** 2).sum()) for t in tensors.values()))
    return {"weights": digest(b"".join(parts)), "norm": f"{norm:.5g}"}


def left_by(folder: Path) -> dict[str, Any]:
    """Return what a finished run left in its folder."""
    record = json.loads((folder / "record.json").read_text())
    ledger = folder / "ledger.jsonl"  # absent without privacy
    lines = [json.loads(x) for x in ledger.read_text().splitlines()[1:]] if ledger.exists() else []
    privacy = record["privacy"]
    return {
        **weights(folder / "model"),
        "updates": digest(" ".join(str(line.get("update")) for line in lines).encode()),
        "steps": len(lines),
        "epsilon_rdp": lines[-1].get("epsilon_rdp") if lines else None,
        "epsilons": {k: v for k, v in privacy.items() if k.startswith("epsilon")},
        "scores": {split: s["metrics"] for split, s in record["scores"].items() if "metrics" in s},
    }


def command(*words: str) -> str:
    """Run dpft in another process and return its output; raise RuntimeError if it fails."""
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "dpft", *words]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def train(name: str, words: list[str], folder: Path) -> dict[str, Any]:
    words = [*COMMON, *words, f"name={name}", f"runs_dir={folder}"]
    if any(word.startswith("ranks=") for word in words):
        command("train", *words)
    else:
        from dpft.config.compose import compose
        from dpft.config.schema import parse
        from dpft.training.run import run_experiment

        run_experiment(parse(compose(words)))
    return left_by(next(folder.rglob(f"{name}/record.json")).parent)


def of_users(folder: Path) -> dict[str, Any]:
    """Train with persons as the unit of privacy, on a file that is written here."""
    rows = [f"{'bad' if i % 3 else 'good'} no. {i},{'ab'[i % 2]},p{i % 9}" for i in range(40)]
    file = folder / "users.csv"
    file.write_text("\n".join(["text,label,who", *rows]))
    return train("users", [*USERS, f"task.train_file={file}"], folder)


def trainer(folder: Path) -> dict[str, Any]:
    """Train a small classifier by ``PrivateTrainer``."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    from dpft.integrations.transformers import PrivacyArguments, PrivateTrainer

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "vocab_size": 23}
    config: Any = BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
    model = BertForSequenceClassification(config)
    data = [{"input_ids": [2 + i % 20, 3, 4 + i % 7], "labels": i % 2} for i in range(24)]
    privacy = PrivacyArguments(noise_multiplier=1.0, delta=1e-3, threshold=0.5, noise_seed=7)
    out = folder / "trainer"
    options: dict[str, Any] = {"max_steps": 4, "max_grad_norm": 0, "report_to": "none"}
    arguments = TrainingArguments(str(out), per_device_train_batch_size=6, use_cpu=True, **options)
    private = PrivateTrainer(model, arguments, train_dataset=data, privacy=privacy)
    private.train()
    private.save_model()
    lines = (out / "ledger.jsonl").read_text().splitlines()[1:]
    updates = " ".join(str(json.loads(line).get("update")) for line in lines)
    return {**weights(out), "updates": digest(updates.encode()), "steps": len(lines)}


def measured(only: str) -> dict[str, Any]:
    """Return the content of the file; `only` is a part of the names of the runs."""
    import torch

    found: dict[str, Any] = {
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as place:
        folder, own = Path(place), {"users": of_users, "trainer": trainer}
        for name in [name for name in (*RUNS, *own) if only in name]:
            print(name, file=sys.stderr)
            try:
                found[name] = own[name](folder) if name in own else train(name, RUNS[name], folder)
            except Exception as error:  # that a run is refused is also a result
                found[name] = f"{type(error).__name__}: {error}"[-300:]
    if not only:
        tables = command("table").splitlines()
        names = [line.split()[0] for line in tables if line.strip()[:2] in ("li", "bu", "he")]
        found["tables"] = {name: digest(command("table", name).encode()) for name in names}
        found["claims"] = command("claims").splitlines()
    return found


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = sorted({*old, *new})
        return [x for k in keys for x in differences(old.get(k), new.get(k), f"{place} {k}")]
    return [] if old == new else [f"{place.strip()}: {old} -> {new}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--only", default="", help="only runs with this in their names")
    asked = parser.parse_args()
    old = json.loads(asked.file.read_text()) if asked.file.exists() else {}
    new = json.loads(json.dumps(measured(asked.only)))
    if not asked.check:
        asked.file.write_text(json.dumps(old | new, indent=1) + "\n")
        return
    found = differences({k: v for k, v in old.items() if k in new}, new)
    print("\n".join(found) or "identical")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
