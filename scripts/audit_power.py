"""What the audit's lower bound says of right releases and of broken ones, run by run.

    python scripts/audit_power.py --out results/audit-power

Trains a small linear model with dpft's own sampler, clipper, noise and gradient canaries, as
`dpft.training.loop` does: as claimed, and broken (less noise, a larger rate, one
noise for all steps). Each run is audited against what it claims. Rows that stand in
runs.csv are not run again. Time: half an hour on one core.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from dpft.audit.auditor import Auditor
from dpft.audit.gradients import GradientCanaries
from dpft.privacy import Mechanism, make_clipper

CANARIES = 1000
EPSILON = 3.0
THRESHOLD = 0.1
RATE = 0.1  # of learning
FEATURES, CLASSES = 64, 32
RIGHT_RUNS, BROKEN_RUNS = 50, 5
# Records, batch and steps: a small data set in ten epochs, and E2E's in ten.
SIZES = {200: (64, 32), 42_061: (1024, 411)}
HEADER = ("records", "batch", "steps", "canaries", "epsilon", "fault", "factor", "seed",
          "epsilon_lower", "refuted", "score", "guesses", "correct")  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What is done otherwise than claimed, and by which factor."""

    name: str
    factor: int


RIGHT = Fault("none", 1)
FAULTS = (
    *(Fault("noise", factor) for factor in (2, 3, 4, 8)),
    *(Fault("rate", factor) for factor in (2, 3, 4, 8)),
    Fault("one noise", 1),
)


def claimed(size: int) -> Mechanism:
    """What the run says it does; the canaries' slots are sampled like records."""
    batch, steps = SIZES[size]
    return Mechanism.calibrate(
        dataset_size=size + CANARIES,
        batch_size=round(batch * (size + CANARIES) / size),
        steps=steps,
        thresholds=(THRESHOLD,),
        delta=1 / (2 * size),
        target_epsilon=EPSILON,
        accountant="prv",
    )


def broken(mechanism: Mechanism, fault: Fault) -> tuple[Mechanism, Mechanism]:
    """What the sampler believes, and what the noise does."""
    if fault.name == "rate":
        larger = min(mechanism.dataset_size, mechanism.batch_size * fault.factor)
        return replace(mechanism, batch_size=larger), mechanism
    if fault.name == "noise":
        noise = mechanism.noise_multiplier / fault.factor
        return mechanism, replace(mechanism, noise_multiplier=noise)
    return mechanism, mechanism


def audited(size: int, fault: Fault, seed: int) -> dict[str, object]:
    """Train, and hold what was released against what was claimed."""
    torch.manual_seed(seed)
    key = f"{size} {fault} {seed}".encode()
    model = nn.Linear(FEATURES, CLASSES)
    inputs, labels = torch.randn(size, FEATURES), torch.randint(CLASSES, (size,))
    clipper = make_clipper(model, "bk", threshold=THRESHOLD)
    claim = claimed(size)
    drawer, noisy = broken(claim, fault)
    sampler, noise = drawer.sampler(key), noisy.noise(key, clipper)
    auditor = Auditor({"gradients": GradientCanaries(CANARIES, clipper, claim, key)})
    for step in range(claim.steps):
        model.zero_grad()
        drawn = sampler.batch(step)
        real = [i for i in drawn if i < size]
        if real:
            clipper.backward(
                nn.functional.cross_entropy(model(inputs[real]), labels[real], reduction="none")
            )
        auditor.insert([i - size for i in drawn if i >= size])
        if fault.name == "one noise":
            noisy.noise(key, clipper).privatise_(0)
        else:
            noise.privatise_(step)
        auditor.observe()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= RATE * parameter.grad
    result = auditor.result(claim, confidence=0.95, epsilon=EPSILON)
    part = result["parts"]["gradients"]
    return {
        "records": size, "batch": claim.batch_size, "steps": claim.steps, "canaries": CANARIES,
        "epsilon": EPSILON, "fault": fault.name, "factor": fault.factor, "seed": seed,
        "epsilon_lower": f"{result['epsilon_lower']:.4f}", "refuted": result["refuted"],
        "score": part["score"], "guesses": part["guesses"], "correct": part["correct"],
    }  # fmt: skip


def draw(rows: list[dict[str, str]], file: Path) -> None:
    """Bounds against what was done, a dot for each run, one panel a data set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    order = [RIGHT, *FAULTS]
    names = ["as claimed" if f is RIGHT else f.name if f.factor == 1 else
             f"noise / {f.factor}" if f.name == "noise" else f"{f.factor} x rate"
             for f in order]  # fmt: skip
    figure, panels = plt.subplots(1, len(SIZES), figsize=(10, 4), sharey=True)
    for panel, size in zip(panels, SIZES, strict=True):
        for place, fault in enumerate(order):
            bounds = [
                float(row["epsilon_lower"])
                for row in rows
                if (int(row["records"]), row["fault"], int(row["factor"]))
                == (size, fault.name, fault.factor)
            ]
            panel.plot([place] * len(bounds), bounds, "o", alpha=0.5, color="tab:blue")
        panel.axhline(EPSILON, color="black", linewidth=1, label="claimed epsilon")
        panel.set_xticks(range(len(order)), names, rotation=45, ha="right")
        panel.set_title(f"{size:,} records, {SIZES[size][1]} steps")
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("lower bound on epsilon (95%)")
    panels[0].set_ylim(0, 1.1 * max(float(row["epsilon_lower"]) for row in rows))
    panels[0].legend(loc="upper left")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Audit right releases and broken ones.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--right", type=int, default=RIGHT_RUNS, help="runs as claimed")
    parser.add_argument("--broken", type=int, default=BROKEN_RUNS, help="runs of each fault")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "runs.csv"
    if not file.exists():
        file.write_text(",".join(HEADER) + "\n", encoding="utf-8")
    with file.open(encoding="utf-8") as stream:
        known = {tuple(row[n] for n in ("records", "fault", "factor", "seed"))
                 for row in csv.DictReader(stream)}  # fmt: skip
    for size in SIZES:
        for fault in (RIGHT, *FAULTS):
            for seed in range(args.right if fault is RIGHT else args.broken):
                if (str(size), fault.name, str(fault.factor), str(seed)) in known:
                    continue
                row = audited(size, fault, seed)
                with file.open("a", encoding="utf-8", newline="") as stream:
                    csv.DictWriter(stream, HEADER, lineterminator="\n").writerow(row)
                print(*row.values(), flush=True)
    with file.open(encoding="utf-8") as stream:
        draw(list(csv.DictReader(stream)), args.out / "bounds.png")


if __name__ == "__main__":
    main()
