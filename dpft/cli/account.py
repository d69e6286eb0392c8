"""``dpft account``: what a budget means for a task, with neither data nor GPU."""

import json
from typing import Annotated

import typer

from dpft.cli.options import AsJson
from dpft.cli.output import warn
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.published import PUBLISHED_TASKS
from dpft.config.schema import parse
from dpft.report.terminal import echo


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
        raise ConfigError(f"got resume={run.resume}; dpft report {run.resume} shows what it spends")
    if not run.clip.private:
        raise ConfigError("clip=none is not private: there is nothing to account for")
    from dpft.tasks import load_task

    load_task(run.task)  # checks its settings
    from dpft.privacy.rounding import delta, down, up
    from dpft.runs.log import finite
    from dpft.training.mechanisms import make_mechanism, published_size

    size = published_size(run)
    mechanism = make_mechanism(run, size)
    sigma, epsilon = mechanism.noise_multiplier, mechanism.epsilons()
    if as_json:
        names = (
            *("batch_size", "noise_multiplier", "sampling_rate", "steps", "sampling", "delta"),
            *("target_epsilon", "accountant"),
            *(("max_batch", "overflow") if mechanism.max_batch is not None else ()),
        )
        answer = {"task": run.task["name"], "dataset_size": size, "epsilon": epsilon}
        answer |= {name: getattr(mechanism, name) for name in names}
        echo(json.dumps(finite(answer), indent=2))
        return
    from dpft.privacy.guarantee import APPROXIMATION, bound_kind, own_caveats, stated, warnings
    from dpft.report.comparison import print_pairs

    shuffled = mechanism.sampling == "shuffle"
    calibrated = "as given"
    if mechanism.target_epsilon is not None:
        calibrated = f"calibrated to epsilon {mechanism.target_epsilon} by {mechanism.accountant}"
        if mechanism.accountant == "pld" and epsilon["pld"] is None:
            calibrated = calibrated.replace("by pld", "by rdp: PLD gives no number")
    default = "1/(2N)" if run.task["name"] in PUBLISHED_TASKS else "least of 1e-5 and 1/(10N)"
    rows = [("noise multiplier", f"{sigma:.6g}", calibrated)]
    rows.append(("sampling rate", f"{mechanism.sampling_rate:.6g}", mechanism.sampling))
    if mechanism.max_batch is not None:
        chance = f"a step's sample is as large with probability {mechanism.overflow:.2g}"
        places = f"{mechanism.max_batch:,}"
        rows.append(("  cut or filled up to", places, f"{chance}, counted in epsilon"))
    rows.append(("steps", f"{mechanism.steps:,}", ""))
    rows.append(("delta", delta(mechanism.delta), "" if run.privacy.delta else default))
    for name in ("pld", "rdp"):
        if epsilon[name] is not None:
            kind = bound_kind(name, shuffled)
            rows.append((f"epsilon, {name.upper()}", up(epsilon[name]), kind))
    if prv := epsilon["prv"]:
        between = f"estimate {prv['estimate']:.4f}, at least {down(prv['lower'])}"
        bound = f"{bound_kind('prv', shuffled)}; {between}"
        rows.append(("epsilon, PRV", up(prv["upper"]), bound))
        rows.append(("epsilon, GDP-CLT", f"{epsilon['gdp_clt']:.5g}", APPROXIMATION))
    canaries, noun = run.audit.canaries, run.task.get("unit", "record")
    among = f"{canaries:,} canaries among them, " if canaries else ""
    title = f"{run.task['name']}: {size:,} {noun}s, {among}batches of {mechanism.batch_size:,}"
    print_pairs(title, rows)
    caveats = own_caveats(stated(epsilon), mechanism.delta, noun, size - canaries)
    for note in (*warnings(mechanism.sampling, run.privacy.noise_seed).values(), *caveats):
        warn(f"note: {note}")
