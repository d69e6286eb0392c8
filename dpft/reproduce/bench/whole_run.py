"""``dpft bench --run``: the runs that are timed, their steps in a worker, and the table of them."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import override, setting_of
from dpft.config.schema import parse
from dpft.report.table import TextTable

STEPS = 8
WARM_UP = 6
"""Steps before those that are timed: a shape is compiled when it is first met."""
_PLACES = (
    *("name", "resume", "runs_dir", "track", "parallel", "ranks"),
    *("privacy.noise_seed", "optim.steps"),
)
_NOTE = (
    "means over the middle half of the steps in order of time. The runs had a public noise seed "
    "and were deleted: nothing of them may be released, so no budget is spent. Times and counts "
    "follow from the records without noise: do not publish them where records are private"
)


def jobs_of(words: Sequence[str], folder: Path, threads: int, steps: int) -> dict[str, Any]:
    """Return a worker's job for each run by its label: private or not, compiled or not.

    What ``words`` decide, by ``clip=none`` or ``compile``, is not varied.

    Raises:
        ConfigError: a setting is wrong, or has no place in one process whose folder is deleted.
    """
    run = parse(compose(words))
    if misplaced := [word for word in words if setting_of(word) in _PLACES]:
        raise ConfigError(f"got {misplaced[0]} next to --run; leave it out: the run is temporary")
    private = [word for word in words if setting_of(word) != "compile"]
    plain = [word for word in private if setting_of(word).partition(".")[0] != "clip"]
    jobs: dict[str, Any] = {}
    for style in dict.fromkeys(["none", str(run.clip.style)]):
        for compiled in (run.compile,) if isinstance(run.compile, bool) else (True, False):
            own = [*plain, "clip=none"] if style == "none" else private
            more = {"compile": compiled, "runs_dir": f"{folder}/{len(jobs)}", "name": "run"}
            more |= {"optim.steps": WARM_UP + steps, "privacy.noise_seed": 0}
            jobs[f"{style}, {'compiled' if compiled else 'eager'}"] = {
                **{"kind": "run", "threads": run.threads or threads},
                "settings": [*own, *map(override, more, more.values())],
            }
    return jobs


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `dpft train` does in a new folder; return each step after those that warm up."""
    from dpft.runs.directory import RunDirectory
    from dpft.runs.folders import run_path
    from dpft.runs.log import read_log
    from dpft.tasks import load_task
    from dpft.training.progress import Progress
    from dpft.training.session import Session
    from dpft.training.setup import prepare

    run = parse(compose(job["settings"]))
    with (
        warnings.catch_warnings(record=True) as warned,
        RunDirectory.open(run_path(run), run.identity(), "") as directory,
        Progress(quiet=True) as progress,
    ):
        warnings.simplefilter("default")
        prepared = prepare(run, load_task(run.task), directory, progress)
        with Session(run, prepared, directory, progress) as session:
            session.train()
        logged = read_log(directory.metrics, "")[WARM_UP:]
    mechanism, kept = prepared.parts.mechanism, ("seconds", "records", "microbatches")
    return {
        "steps": [{name: entry[name] for name in kept} for entry in logged],
        "warnings": sorted({str(w.message) for w in warned if w.category is UserWarning}),
        "private": run.clip.private,
        "records": mechanism.dataset_size,
        "batch_size": mechanism.batch_size,
        "parameters": sum(p.numel() for p in prepared.parts.clipper.parameters.values()),
    }


def figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the means of a step by name, over the middle half of the steps in order of time.

    So a step that meets a new shape, or saves a checkpoint, does not count.
    """
    away = len(result["steps"]) // 4
    ordered = sorted(result["steps"], key=lambda step: float(step["seconds"]))
    middle = ordered[away : len(ordered) - away]
    seconds, records = (fmean(step[name] for step in middle) for name in ("seconds", "records"))
    return {
        "records a second": records / seconds,
        "ms of a step": 1000 * seconds,
        "microbatches": fmean(step["microbatches"] for step in middle),
    }


def table(facts: Mapping[str, Any], load: float, results: Mapping[str, Any]) -> TextTable:
    """Return a column for each run, with device, versions, counts and failures as notes."""
    known, cuda = facts["environment"], facts["device"] == "cuda"
    found = {label: figures(one) for label, one in results.items() if "steps" in one}
    rows = []
    for name in next(iter(found.values()), ()):
        rows.append([name, *(f"{found[k][name]:,.1f}" if k in found else "-" for k in results)])
    rates = {label: one["records a second"] for label, one in found.items()}
    fastest = max((rates[k] for k in found if not results[k]["private"]), default=0.0)
    ratios = [f"{fastest / rates[k]:.2f}" if rates.get(k) and fastest else "-" for k in results]
    rows.append(["time, to the fastest none", *ratios])
    device = known["gpu"] if cuda else f"{known['cpu']}, {known['threads']} threads"
    versions = f"torch {known['packages'].get('torch')}, noise seed 0"
    notes = [("Machine", f"{device}, load average {load:.1f} before, {versions}")]
    for label, one in results.items():
        if "steps" not in one:
            notes.append((label, one["message"]))
            continue
        counts = (
            f"{one['parameters']:,} trained parameters, {one['records']:,} records, "
            f"{one['batch_size']} expected in a step, {len(one['steps'])} steps"
        )
        notes += [(label, counts), *((label, warning) for warning in one["warnings"])]
    notes.append(("Numbers", _NOTE))
    return TextTable(["a step", *results], rows, left=1, notes=notes)
