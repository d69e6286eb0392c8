"""``dpft bench --run``: the runs that are timed, and the figures of their steps."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import override, setting_of
from dpft.config.schema import parse

STEPS = 8
_PHASES = ("data", "clipped sums", "noise", "ledger", "optimizer", "logs", "waiting")
_PLACES = ("name", "resume", "runs_dir", "track", "parallel", "ranks", "privacy.noise_seed")
_NOTE = (
    "means over the middle half of the steps in order of time{}. The runs had a public noise seed "
    "and were deleted: nothing of them may be released, so no budget is spent. Times and counts "
    "follow from the records without noise: do not publish them where records are private"
)
_SPLIT = ", and of steps that wait for the device after each phase for the phases"


def jobs_of(words: Sequence[str], folder: Path, threads: int, steps: int) -> dict[str, Any]:
    """Return a worker's job for each run by its label: private or not, compiled or not.

    What ``words`` decide, by ``clip=none`` or ``compile``, is not varied.

    Raises:
        ConfigError: a setting is wrong, or has no place in one process whose folder is deleted.
    """
    run = parse(compose(words))
    if refused := [word for word in words if setting_of(word) in _PLACES]:
        raise ConfigError(f"got {refused[0]} next to --run; leave it out: the run is temporary")
    private = [word for word in words if setting_of(word) != "compile"]
    plain = [word for word in private if setting_of(word).partition(".")[0] != "clip"]
    jobs: dict[str, Any] = {}
    for style in dict.fromkeys(["none", str(run.clip.style)]):
        for compiled in (run.compile,) if isinstance(run.compile, bool) else (True, False):
            own = [*plain, "clip=none"] if style == "none" else private
            more = {"compile": compiled, "runs_dir": f"{folder}/{len(jobs)}", "name": "run"}
            jobs[f"{style}, {'compiled' if compiled else 'eager'}"] = {
                **{"kind": "run", "steps": steps, "threads": run.threads or threads},
                "settings": [*own, *map(override, more, more.values()), "privacy.noise_seed=0"],
            }
    return jobs


def figures(result: Mapping[str, Any], cuda: bool) -> dict[str, float]:
    """Return the means of a step by name; times in milliseconds.

    They are over the middle half of the steps in order of time: a step that meets a new shape, or
    saves a checkpoint, does not count.
    """
    usual, split = (_middle(result["steps"][first :: 1 + cuda]) for first in (0, int(cuda)))
    seconds = fmean(_seconds(step) for step in usual)
    waiting = fmean(step["seconds"].get("waiting", 0.0) for step in usual)
    parts = {p: fmean(step["seconds"].get(p, 0.0) for step in split) for p in _PHASES}
    return {
        "records a second": fmean(step["records"] for step in usual) / seconds,
        "ms of a step": 1000 * seconds,
        "ms of host work": 1000 * (seconds - waiting),
        **{f"ms of {phase}": 1000 * part for phase, part in parts.items()},
        "microbatches": fmean(step["microbatches"] for step in usual),
        "Python calls": result["calls"],
    }


def table(results: Mapping[str, Any], cuda: bool) -> Iterator[list[str]]:
    """Yield the rows of a table with a column for each result; runs that failed have no figures."""
    found = {label: figures(one, cuda) for label, one in results.items() if "steps" in one}
    rates = {label: one["records a second"] for label, one in found.items()}
    for name in next(iter(found.values()), ()):
        digits = 0 if name == "Python calls" else 1
        yield [name, *(f"{found[k][name]:,.{digits}f}" if k in found else "-" for k in results)]
    fastest = max((rate for label, rate in rates.items() if label.startswith("none")), default=0.0)
    ratios = [f"{fastest / rates[k]:.2f}" if rates.get(k) and fastest else "-" for k in results]
    yield ["time, to the fastest none", *ratios]


def notes(facts: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the figures must be read with: device, versions, counts, failures."""
    known, cuda = facts["environment"], facts["device"] == "cuda"
    device = known["gpu"] if cuda else f"{known['cpu']}, {known['threads']} threads"
    versions = f"torch {known['packages'].get('torch')}, noise seed 0"
    yield f"{device}, load average {facts['load']:.1f} before, {versions}"
    for label, one in results.items():
        if "steps" not in one:
            yield f"{label}: {one['message']}"
            continue
        yield (
            f"{label}: {one['parameters']:,} trained parameters, {one['records']:,} records, "
            f"{one['batch_size']} expected in a step, {len(one['steps'])} steps"
        )
        yield from (f"{label}: {warning}" for warning in one["warnings"])
    yield _NOTE.format(_SPLIT if cuda else "")


def _seconds(step: Mapping[str, Any]) -> float:
    return float(sum(step["seconds"].values()))


def _middle(steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    away = len(steps) // 4
    return sorted(steps, key=_seconds)[away : len(steps) - away]
