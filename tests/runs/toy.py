"""A training loop of the real one's shape over one small tied model."""

import hashlib
from pathlib import Path

import torch

from dpft.runs import Ledger, MetricsLog, RunDirectory, checkpoint, key_fingerprint

SEED = 7


def gradient(key: bytes, step: int, weight: torch.Tensor) -> torch.Tensor:
    digest = hashlib.sha256(key + step.to_bytes(8, "big")).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return 0.1 * weight.detach() + torch.randn(weight.shape, generator=generator)


def train(folder: Path, steps: int = 6, save_every: int = 2, size: int = 4) -> None:
    config = {"privacy": {"epsilon": 3}, "steps": steps, "size": size}
    with RunDirectory.open(folder, config, "epsilon: 3\n") as run:
        if run.is_done:
            return
        key = run.noise_key(SEED)
        header = {"mechanism": {"sigma": 1.0}, "key_fingerprint": key_fingerprint(key)}
        weight = torch.nn.Parameter(torch.ones(size, size))
        momentum = torch.zeros(size, size, dtype=torch.float64)
        with Ledger(run.ledger, header) as ledger:
            start = 0
            if (latest := checkpoint.load_latest(run)) is not None:
                start = latest.step
                ledger.go_on(start)
                latest.fill({"weight": weight.detach(), "momentum": momentum})
            with MetricsLog(run.metrics, start) as metrics:
                for step in range(start, steps):
                    noisy = gradient(key, step, weight)
                    update = hashlib.sha256(noisy.numpy().tobytes()).hexdigest()[:16]
                    ledger.spend(step, update=update)
                    momentum = 0.9 * momentum + noisy
                    weight.data.sub_(0.1 * momentum)
                    metrics.append(step, loss=float(weight.detach().sum()))
                    if (step + 1) % save_every == 0 or step + 1 == steps:
                        tensors = {"weight": weight, "momentum": momentum}
                        checkpoint.save(run, step + 1, tensors, {"size": size})
        run.mark_done()


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a run but the lock, which holds a process id.

    Of the checkpoints the newest: one kill may leave a superfluous old one to the next save.
    """
    old = sorted((folder / "checkpoints").iterdir())[:-1]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock" and path.parent not in old
    }
