"""The cost of a run, before it starts: noise and epsilon, memory and time."""

import json
from typing import Annotated

import typer

from dpft.cli.options import AsJson, Settings
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import check_budget
from dpft.config.published import PUBLISHED_TASKS
from dpft.config.schema import parse
from dpft.report.console import Console
from dpft.report.terminal import echo, warn


def account_verb(
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


_GIB = 2**30


def plan_verb(
    overrides: Settings = None,
    on: Annotated[
        str, typer.Option(metavar="DEVICE", help="Data sheet of the device: a name or a YAML file.")
    ] = "h100-sxm",
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a record. Default: the task's maximum.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="Find the largest microbatch that fits; slower.")
    ] = False,
) -> None:
    """Memory and time of a step, before the run: dpft plan model=gpt2-xl --on h100-sxm

    Simulates one step on one device, without weights or data. Type clip=none for the step without
    privacy.
    """
    check_budget(overrides or ())
    run = parse(compose(overrides or ()))
    with Console(stderr=True).status("simulating a step"):
        from dpft.plan import estimate as plans
        from dpft.plan.estimate import shape_of
        from dpft.report.comparison import print_pairs

        shape = shape_of(run, length=length)
        sheet = plans.device(on)
        fitting = plans.largest_of(run, shape, sheet.memory) if largest else None
        cost, time, run_length = plans.plan(run, shape, sheet)
    name = f"{run.model.name} adapt={run.adapt.name} clip={run.clip.style}"
    echo(
        f"simulated: {name}, microbatches of {shape.batch} records of {shape.length} tokens; "
        f"{cost.trained:,} of {cost.parameters:,} parameters trained"
    )
    gib = {"between steps": cost.held}
    gib |= {f"at most in {phase}": peak for phase, peak in cost.peaks.items()}
    gib |= {} if cost.checked is None else {"at most where rules are checked": cost.checked}
    gib["at most"] = cost.peak
    rows = [(f"GiB {where}", f"{size / _GIB:,.2f}", "") for where, size in gib.items()]
    fits = "yes" if cost.peak <= sheet.memory else "no"
    rows.append((f"fits in {sheet.memory / _GIB:g} GiB", fits, ""))
    for part in ("microbatch", "host", "optimizer"):
        rows.append((f"ms of {part}", f"{1000 * getattr(time, part):,.2f}", ""))
    rows.append((f"s of a step, microbatches: {time.microbatches:,}", f"{time.seconds:,.2f}", ""))
    if run_length is not None:
        rows.append(("records a second", f"{run_length[1] / time.seconds:,.0f}", ""))
        hours = f"{run_length[0] * time.seconds / 3600:,.2f}"
        rows.append((f"hours of {run_length[0]:,} steps", hours, ""))
    print_pairs("a step", rows)
    if fitting is not None:
        tokens = fitting * shape.length
        text = f"largest microbatch in nine tenths of the memory: {fitting} records"
        echo(f"{text} (optim.microbatch_tokens={tokens})" if fitting else f"{text}: none fits")
    echo(
        f"assumed: {sheet.title}, {sheet.attained}; an operation takes its products, its bytes "
        f"or {sheet.overhead * 1e6:.1f} us, one after the other, as an eager step does; "
        f"a record has {shape.length} tokens; "
        "float32 products without TF32; the host's share is that of another machine"
    )
    if run_length is None:
        echo("the run's steps are unknown: type task.train_size=N, the number of training records")
    echo("not counted: reading data, noise, decoding, checkpoints, the time of checked batches")
