"""Predicted time beside measured time, on this machine's CPU, with one thread.

    python scripts/plan_check.py --rounds 5

For each model and style: seconds of one microbatch's forward and backward, by `dpft plan`'s count
of operations and this CPU's measured rates, and as measured: the thread's own time, least of
several rounds in which styles take turns, so that other processes hardly matter. Then both ratios
to the same step without privacy.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.parallel.simulate import Training, simulated
from dpft.training.devices import measured_cpu
from dpft.training.estimate import estimate
from dpft.training.planned_step import shape_of, training_of

STYLES = ("none", "bk", "ghost", "per_layer")
MODELS = {
    "gpt2": ("task=e2e model=gpt2", 2, 64),
    "gpt2-medium LoRA": ("task=e2e model=gpt2-medium adapt=lora", 2, 64),
    "roberta-base": ("task=sst2 model=roberta-base", 4, 32),
    "random-llama": ("task=e2e model=random-llama", 16, 64),
}


class _Timed:
    """One style's step, whose forward and backward are timed again and again."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._model = training.build()
        self._clipper = training.clip(self._model, None)
        self._batch = training.batch()
        self.once()  # is checked, and the second is not

    def once(self) -> float:
        start = time.thread_time()
        self._clipper.backward(self._training.losses(self._model, self._batch))
        taken = time.thread_time() - start
        for parameter in self._clipper.parameters.values():
            parameter.grad = None
        return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | clip | predicted ms | measured ms | predicted ratio | measured ratio | off |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in options.models.split(","):
        compare(name, options.rounds)


def compare(name: str, rounds: int) -> None:
    words, batch, length = MODELS[name]
    predicted, timed = {}, {}
    for style in STYLES:
        private = style != "none"
        run = parse(compose([*words.split(), f"clip={style if private else 'bk'}"]))
        shape = shape_of(run, 1, batch, length)
        training: Any = training_of(run, shape, private)
        predicted[style] = (simulated(training, on_gpu=False, check=False), shape)
        timed[style] = _Timed(training)
    least = dict.fromkeys(STYLES, float("inf"))
    for _ in range(rounds):
        for style in STYLES:
            least[style] = min(least[style], timed[style].once())
    device = measured_cpu()  # as busy as the rounds were
    found = {s: estimate(cost, shape, device).microbatch for s, (cost, shape) in predicted.items()}
    for style in STYLES:
        said, true = found[style] / found["none"], least[style] / least["none"]
        print(
            f"| {name} | {style} | {1000 * found[style]:.1f} | {1000 * least[style]:.1f} "
            f"| {said:.2f} | {true:.2f} | {said / true - 1:+.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
