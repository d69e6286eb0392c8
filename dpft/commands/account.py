"""``dpft account``: what a budget means for a task, with neither data nor GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence

import typer

from dpft.compose import compose
from dpft.config import parse
from dpft.errors import ConfigError


def main(overrides: Sequence[str], as_json: bool) -> None:
    """Print what a budget means, as a table or as JSON."""
    raw = compose(overrides)
    run = parse(raw)
    if run.clip.style == "none":
        raise ConfigError("clip=none is not private: there is nothing to account for")
    from dpft.mechanisms import make_mechanism, published_size

    size = published_size(run)
    mechanism = make_mechanism(run, size)
    answer = {
        "task": run.task["name"],
        "dataset_size": size,
        "batch_size": mechanism.batch_size,
        "noise_multiplier": mechanism.noise_multiplier,
        "sampling_rate": mechanism.sampling_rate,
        "steps": mechanism.steps,
        "delta": mechanism.delta,
        "target_epsilon": mechanism.target_epsilon,
        "accountant": mechanism.accountant,
        "epsilon": mechanism.epsilons(),
    }
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from dpft.report import print_pairs

    epsilon = mechanism.epsilons()
    prv = epsilon["prv"]
    calibrated = f"calibrated to epsilon {mechanism.target_epsilon} by {mechanism.accountant}"
    print_pairs(
        f"{run.task['name']}: {size:,} records, batches of {mechanism.batch_size:,}",
        [
            ("noise multiplier", f"{mechanism.noise_multiplier:.6g}", calibrated),
            ("sampling rate", f"{mechanism.sampling_rate:.6g}", mechanism.sampling),
            ("steps", f"{mechanism.steps:,}", ""),
            ("delta", f"{mechanism.delta:.4g}", "" if run.privacy.delta else "1/(2N)"),
            ("epsilon, RDP", f"{epsilon['rdp']:.4f}", "upper bound"),
            ("epsilon, PRV", f"{prv['estimate']:.4f}", f"{prv['lower']:.4f} to {prv['upper']:.4f}"),
            ("epsilon, GDP-CLT", f"{epsilon['gdp_clt']:.4f}", "approximation, may be too low"),
        ],
    )
