"""The release of a private selection: the best trial, and the price of having chosen it."""

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpft.config.errors import ConfigError, RunError
from dpft.config.schema import Audit
from dpft.privacy.accounting import RDPCurve, run_curve
from dpft.privacy.guarantee import Guarantee, claim, made, own_caveats
from dpft.report.card import write_card, write_lineage
from dpft.runs.atomic import fsync, fsync_tree
from dpft.runs.folders import DONE, damages, marked, read_marker, stored_config
from dpft.runs.ledger import read_ledger
from dpft.runs.record import read_record
from dpft.sweep.selection.trials import Selection, Trials
from dpft.tasks.scores import score

# Of the trial, next to its record: what the verbs that use a trained run look for and use.
_COPIED = ("identity.json", "model", "generations")


def best(paths: Sequence[Path], metric: str, lowest: bool) -> tuple[Path, dict[str, Any], int]:
    """Return folder and record of the best trial, and on how many records all were trained.

    Raises:
        ConfigError: a trial repeated steps, their numbers of records differ, or none has a score.
    """
    sizes: set[int] = set()
    ranked: list[tuple[float, int, Path, dict[str, Any]]] = []
    for path in paths:
        # A trial without a record diverged: its ledger holds the number of records. Having no
        # score is the worst score: it follows from what the trial releases, as any score does.
        record = read_record(path) if (path / "record.json").exists() else None
        ledger = None if record else read_ledger(path / "ledger.jsonl")
        mechanism = record["mechanism"] if record else ledger.header["mechanism"] if ledger else {}
        if mechanism.get("repeated") or (ledger and ledger.stretch.repeated):
            raise ConfigError(
                "a trial went on with other devices and repeated steps, so that it spent more than "
                "its candidate, and no price holds. Give another --name, whose price adds to this"
            )
        sizes.add(int(mechanism["dataset_size"]))
        value = score(record, metric)[1] if record else None
        if record and value is not None:
            ranked.append((value, len(ranked), path, record))
    if len(sizes) > 1:
        raise ConfigError(
            f"trials were trained on {' and '.join(f'{n:,}' for n in sorted(sizes))} records: the "
            "data changed meanwhile, and no price holds. Put the data back, and give another "
            "--name, whose price adds to what was spent here"
        )
    if not ranked:
        raise ConfigError(f"no trial has a finite {metric}; nothing is released")
    _, _, path, record = (min if lowest else max)(ranked, key=lambda one: one[:2])
    return path, record, sizes.pop()


def at_most(curves: Sequence[RDPCurve]) -> RDPCurve:
    """Return a bound for all of several mechanisms: the largest at every order."""
    return RDPCurve(curves[0].orders, np.max([curve.rdp for curve in curves], axis=0))


def price(mechanisms: Sequence[Any], trials: Trials) -> tuple[RDPCurve, RDPCurve, float]:
    """Return the Renyi DP of one run at most and of the selection, and the delta of both."""
    each = at_most([run_curve(**one.spent, steps=one.steps) for one in mechanisms])
    return each, trials.cost(each), min(mechanism.delta for mechanism in mechanisms)


def release(
    selection: Selection,
    trial: Path,
    record: Mapping[str, Any],
    *,
    metric: str,
    lowest: bool,
    trials: Trials,
    mechanisms: Sequence[Any],
) -> dict[str, Any]:
    """Copy what may be released of the best trial, and return its record with the price of all.

    Its guarantee is the selection's: the trial's own epsilons hold no longer and are left out.

    Raises:
        RunError: the trial is damaged, which its copy could not show.
    """
    if damaged := damages(trial):
        (trial / DONE).unlink()  # so that it is made again
        raise RunError(
            f"{selection.path}: of the trial that scored best {damaged[0]}; expected what it "
            "wrote. Nothing is released: run the same command again, which makes the trial again"
        )
    chosen = priced(record, metric, lowest, trials, mechanisms)
    fresh = selection.private / "chosen.new"  # where no reader looks if this process is killed
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in _COPIED:
        _copy(trial / name, fresh / name)
    _, settings = stored_config(trial)
    settings |= {"runs_dir": str(selection.path), "name": selection.chosen.name}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    (fresh / "config.yaml").write_text(text, encoding="utf-8")
    text = json.dumps(chosen, indent=2, sort_keys=True, ensure_ascii=False)
    (fresh / "record.json").write_text(text + "\n", encoding="utf-8")
    if (fresh / "model").is_dir():
        write_card(fresh / "model", chosen)
        write_lineage(fresh / "model", chosen)
    if (marker := read_marker(trial)) is not None:
        # Other files than the trial's: the record has another guarantee, and there is no ledger.
        text = marked(fresh, marker.config_hash)
        (fresh / DONE).write_text(text, encoding="utf-8")
    fsync_tree(fresh)
    # The times of the trials would show how many there were; a kill may come after the release,
    # which is made once.
    os.utime(selection.description)
    fresh.rename(selection.chosen)
    fsync(selection.path)
    return chosen


def priced(
    record: Mapping[str, Any],
    metric: str,
    lowest: bool,
    trials: Trials,
    mechanisms: Sequence[Any],
) -> dict[str, Any]:
    """Return the record of a trial as that of the selection's outcome."""
    _, total, delta = price(mechanisms, trials)
    split = record["config"]["decode"]["split"]
    uncovered = "its records: they must be ones that may be looked at freely"
    if record["config"]["task"].get(f"{split}_share"):
        uncovered = (
            "its records, which were held out of the private data: the choice itself, and with it "
            "this model, may reveal something of them"
        )
    caveats = (
        f"chosen by {metric} among {len(mechanisms)} candidates: the number of runs was drawn "
        f"(geometric, mean {trials.mean:g}) and is secret, as are all other runs. Publishing any "
        "of them, or how many there were, voids the guarantee (Papernot & Steinke 2022)",
        f"scores of the {split} split decided which run is released, and no guarantee covers "
        f"{uncovered}",
    )
    guarantee = of_selection(
        Guarantee.of_record(record),
        epsilon=total.epsilon(1, delta),
        delta=delta,
        size=record["mechanism"]["dataset_size"]
        - Audit(**record["config"].get("audit", {})).canaries,
        caveats=caveats,
    )
    return {
        **record,
        "privacy": guarantee.to_dict(),
        # Trials may share a process, whose peak is of all of them.
        "training": {**record["training"], "peak_memory_bytes": None},
        "selection": {
            "metric": metric,
            "best": "lowest" if lowest else "highest",
            **asdict(trials),
            "candidates": len(mechanisms),
            "orders": total.orders.tolist(),
            "rdp": [value if math.isfinite(value) else None for value in total.rdp.tolist()],
        },
    }


def of_selection(
    trial: Guarantee, *, epsilon: float, delta: float, size: int, caveats: Sequence[str]
) -> Guarantee:
    """Return the guarantee of the best of several runs, in place of the trial's own.

    The trial's own epsilons hold no longer; ``epsilon`` is of the whole selection, by Renyi DP.
    """
    epsilons = {"pld": None, "rdp": epsilon, "gdp_clt": None, "prv": None}
    choice = "the choice of the best of a random number of runs included, "
    stated = claim(epsilons, delta, trial.noun, trial.unit, size, choice)
    if trial.strength == "none":
        stated["strength"] = "none"
    if not trial.meaning:
        stated["meaning"] = ""
    # What was said of the trial's own epsilon and delta is said of these.
    said = own_caveats(trial.stated, trial.delta or delta, trial.noun, size)
    kept = [caveat for caveat in trial.caveats if caveat not in said]
    own = own_caveats(epsilon if math.isfinite(epsilon) else None, delta, trial.noun, size)
    return made(
        *("private", trial.noun, trial.unit, trial.steps_taken, epsilons, delta),
        **stated,
        voided_by=trial.voided_by,
        warnings=trial.warnings,
        caveats=(*own, *kept, *caveats),
        selected=True,
    )


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder without its times, which show how many trials followed."""
    if source.is_file():
        shutil.copyfile(source, target)
    elif source.is_dir():
        target.mkdir()
        for path in sorted(source.iterdir()):
            _copy(path, target / path.name)
