"""``dpft account``: what a budget means for a task, with neither data nor GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpft.cli.options import AsJson
from dpft.cli.output import warn
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.published import PUBLISHED_TASKS
from dpft.config.schema import Clip, parse
from dpft.report.terminal import echo

if TYPE_CHECKING:
    from dpft.privacy import Mechanism


def main(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="As for train: task=sst2 eps=3 optim.batch_size=1000 ..."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Noise and epsilon by four accountants, without data: dpft account task=e2e eps=3"""
    run = parse(compose(overrides or ()))
    if run.resume is not None:
        raise ConfigError(
            f"got resume={run.resume}, but what a run spends follows from its own settings and "
            f"data: type dpft report {run.resume}, or give the settings themselves"
        )
    if not run.clip.private:
        raise ConfigError("clip=none is not private: there is nothing to account for")
    from dpft.tasks import load_task

    load_task(run.task)  # refuses wrong settings; the rest of what it offers is not needed here
    from dpft.runs.record import finite
    from dpft.training.mechanisms import make_mechanism, published_size

    size = published_size(run)
    mechanism = make_mechanism(run, size)
    sigma = mechanism.noise_multiplier
    answer: dict[str, Any] = {
        "task": run.task["name"],
        "dataset_size": size,
        "batch_size": mechanism.batch_size,
        "noise_multiplier": sigma,
        **({"quantiles": counts} if (counts := _counts(run.clip, sigma)) else {}),
        "sampling_rate": mechanism.sampling_rate,
        "steps": mechanism.steps,
        "sampling": mechanism.sampling,
        **(
            {"max_batch": mechanism.max_batch, "overflow": mechanism.overflow}
            if mechanism.max_batch is not None
            else {}
        ),
        "delta": mechanism.delta,
        "target_epsilon": mechanism.target_epsilon,
        "accountant": mechanism.accountant,
        "epsilon": mechanism.epsilons(),
    }
    if as_json:
        echo(json.dumps(finite(answer), indent=2))
        return
    from dpft.privacy.guarantee import bound_kind, own_caveats, stated, warnings
    from dpft.privacy.rounding import delta, up
    from dpft.report.comparison import print_pairs

    epsilon = answer["epsilon"]
    prv = epsilon["prv"]
    shuffled = mechanism.sampling == "shuffle"
    calibrated = f"calibrated to epsilon {mechanism.target_epsilon} by {mechanism.accountant}"
    if mechanism.accountant == "pld" and epsilon["pld"] is None:
        calibrated = f"calibrated to epsilon {mechanism.target_epsilon} by rdp: PLD gives no number"
    if mechanism.target_epsilon is None:
        calibrated = "as given"
    canaries = run.audit.canaries
    default = "1/(2N)" if run.task["name"] in PUBLISHED_TASKS else "least of 1e-5 and 1/(10N)"
    print_pairs(
        f"{run.task['name']}: {size:,} {run.task.get('unit', 'record')}s, "
        f"{f'{canaries:,} canaries among them, ' if canaries else ''}"
        f"batches of {mechanism.batch_size:,}",
        [
            ("noise multiplier", f"{sigma:.6g}", calibrated),
            *_rows(counts),
            ("sampling rate", f"{mechanism.sampling_rate:.6g}", mechanism.sampling),
            *_places(mechanism),
            ("steps", f"{mechanism.steps:,}", ""),
            ("delta", delta(mechanism.delta), "" if run.privacy.delta else default),
            *(
                [("epsilon, PLD", up(epsilon["pld"]), bound_kind("pld", shuffled))]
                if epsilon["pld"] is not None
                else []
            ),
            ("epsilon, RDP", up(epsilon["rdp"]), bound_kind("rdp", shuffled)),
            *(_of_plain_sampling(epsilon, bound_kind("prv", shuffled)) if prv else []),
        ],
    )
    real = size - canaries
    caveats = own_caveats(stated(epsilon), mechanism.delta, run.task.get("unit", "record"), real)
    for note in (*warnings(mechanism.sampling, run.privacy.noise_seed).values(), *caveats):
        warn(f"note: {note}")


def _counts(clip: Clip, sigma: float) -> dict[str, Any]:
    """How adaptive thresholds split ``sigma``, as far as that is known before a model is.

    The number of groups ``K`` follows from the model. With a share ``r`` of the budget, the noise
    on gradients does not depend on it, and that on counts grows as its root (He et al. 2022,
    Proposition 3.1). With ``sigma_b`` given, it is the other way round.
    """
    if not clip.adaptive:
        return {}
    from dpft.privacy.quantiles import split_noise

    if clip.quantile_budget is not None:
        gradients, counts = split_noise(sigma, 1, budget=clip.quantile_budget)
        return {
            "budget": clip.quantile_budget,
            "gradient_noise_multiplier": gradients,
            "count_noise_over_root_groups": counts,
        }
    assert clip.quantile_noise is not None
    most = math.ceil((2 * clip.quantile_noise / sigma) ** 2) - 1 if sigma else None
    return {"count_noise": clip.quantile_noise, "most_groups": most}


def _places(mechanism: Mechanism) -> list[tuple[str, str, str]]:
    if mechanism.max_batch is None:
        return []
    chance = f"a step's sample is as large with probability {mechanism.overflow:.2g}"
    return [("  cut or filled up to", f"{mechanism.max_batch:,}", f"{chance}, counted in epsilon")]


def _of_plain_sampling(epsilon: Mapping[str, Any], bound: str) -> list[tuple[str, str, str]]:
    """What is known where no sample is cut."""
    from dpft.privacy.guarantee import APPROXIMATION
    from dpft.privacy.rounding import down, up

    prv = epsilon["prv"]
    between = f"estimate {prv['estimate']:.4f}, at least {down(prv['lower'])}"
    return [
        ("epsilon, PRV", up(prv["upper"]), f"{bound}; {between}"),
        ("epsilon, GDP-CLT", _approximate(epsilon["gdp_clt"]), APPROXIMATION),
    ]


def _approximate(epsilon: float) -> str:
    return f"{epsilon:.2e}" if epsilon >= 1e6 else f"{epsilon:.4f}"


def _rows(counts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    if "budget" in counts:
        share = f"{counts['budget']:.3g} of the budget moves the thresholds"
        root = f"{counts['count_noise_over_root_groups']:.4g} sqrt(K)"
        return [
            ("  on gradients", f"{counts['gradient_noise_multiplier']:.6g}", share),
            ("  on each count", root, "standard deviation; K groups follow from the model"),
        ]
    if counts:
        note = f"standard deviation; leaves noise for at most {counts['most_groups']} groups"
        return [("  on each count", f"{counts['count_noise']:.4g}", note)]
    return []
