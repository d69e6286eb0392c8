"""What is released of a private selection: the best trial, and the price of having chosen it."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpft.config.schema import Audit
from dpft.privacy.accounting.selection import Trials
from dpft.privacy.guarantee import Guarantee, claim, made, own_caveats
from dpft.report.card import write_card, write_lineage
from dpft.runs.atomic import fsync_directory, fsync_tree
from dpft.runs.errors import RunError
from dpft.runs.finished import CARD, DONE, damages, marked, read_marker
from dpft.runs.folders import stored_config
from dpft.sweep.selection import Selection, price, rule, spending

# Of the trial, beside its record: what the verbs that use a trained run look for and use.
_COPIED = ("identity.json", "model", "generations")


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
    """Copy what may be released of the best trial, with the price of the selection.

    Args:
        selection: nothing was released of it yet.
        trial: the best one's folder.
        record: of that trial.
        metric: that decided.
        lowest: whether the lowest was the best.
        trials: the distribution of their number.
        mechanisms: of all candidates, drawn or not.

    Returns:
        The record of the chosen run. Its guarantee is the selection's; the trial's own epsilons,
        by whichever accountant, hold no longer and are left out.

    Raises:
        RunError: the trial is damaged, which nothing could tell of its copy.
    """
    if damaged := [damage for damage in damages(trial) if damage.name != CARD]:
        (trial / DONE).unlink()  # so that it is made again
        raise RunError(
            f"{selection.path}: of the trial that scored best {damaged[0]}; expected what it "
            "wrote. Nothing is released: run the same command again, which makes the trial again"
        )
    chosen = _priced(record, metric, lowest, trials, mechanisms)
    fresh = selection.private / "chosen.new"  # nobody finds it there if this process is killed
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in _COPIED:
        _copy(trial / name, fresh / name)
    (fresh / "config.yaml").write_text(_config(trial, selection), encoding="utf-8")
    (fresh / "record.json").write_text(
        json.dumps(chosen, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if (fresh / "model").is_dir():
        write_card(fresh / "model", chosen)
        write_lineage(fresh / "model", chosen)
    if (marker := read_marker(trial)) is not None:
        # Other files than the trial's: the record has another guarantee, and there is no ledger.
        text = marked(fresh, marker.config_hash).spelled()
        (fresh / DONE).write_text(text, encoding="utf-8")
    fsync_tree(fresh)
    # When the trials began and ended would tell how many there were; a kill may come behind the
    # release, which is made once.
    os.utime(selection.description)
    fresh.rename(selection.chosen)
    fsync_directory(selection.path)
    return chosen


def _priced(
    record: Mapping[str, Any],
    metric: str,
    lowest: bool,
    trials: Trials,
    mechanisms: Sequence[Any],
) -> dict[str, Any]:
    _, epsilon, delta = price(mechanisms, trials)
    many = "Poisson" if trials.poisson else f"truncated negative binomial, shape {trials.shape:g}"
    caveat = (
        f"chosen by {metric} among {len(mechanisms)} candidates: the number of runs was drawn "
        f"({many}, mean {trials.mean:g}) and is secret, as are all other runs. Publishing any of "
        "them, or how many there were, voids the guarantee (Papernot & Steinke 2022)"
    )
    audit = Audit(**record["config"].get("audit", {}))
    return {
        **record,
        "privacy": of_selection(
            Guarantee.of_record(record),
            epsilon=epsilon,
            delta=delta,
            size=record["mechanism"]["dataset_size"] - audit.canaries,
            caveats=(caveat, _uncovered(record)),
        ).to_dict(),
        # Trials may share a process, whose peak is of all of them.
        "training": {**record["training"], "peak_memory_bytes": None},
        "selection": {
            **rule(metric, lowest, trials),
            "candidates": len(mechanisms),
            "mechanisms": spending(mechanisms),
        },
    }


def _uncovered(record: Mapping[str, Any]) -> str:
    """What the guarantee leaves out: the records whose scores decided."""
    split = record["config"]["decode"]["split"]
    text = f"scores of the {split} split decided which run is released, and no guarantee covers "
    if record["config"]["task"].get(f"{split}_share"):
        return (
            f"{text}its records, which were held out of the private data: the choice itself, and "
            "with it this model, may reveal something of them"
        )
    return f"{text}its records: they must be ones that may be looked at freely"


def _config(trial: Path, selection: Selection) -> str:
    """The settings of the trial, in the place where they are released."""
    _, settings = stored_config(trial)
    settings |= {"runs_dir": str(selection.path), "name": selection.chosen.name}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, without times: the original's tell how many trials came after it."""
    if source.is_file():
        shutil.copyfile(source, target)
    elif source.is_dir():
        target.mkdir()
        for path in sorted(source.iterdir()):
            _copy(path, target / path.name)


def of_selection(
    trial: Guarantee, *, epsilon: float, delta: float, size: int, caveats: Sequence[str]
) -> Guarantee:
    """Return the guarantee of the best of several runs, in place of the trial's own.

    Args:
        trial: of the run that was chosen. Its epsilons, by whichever accountant, hold no longer.
        epsilon: of the whole selection, by Renyi DP.
        delta: at which it holds.
        size: how many units delta is compared with, as in the trial's own guarantee.
        caveats: on what the choice leaves open.
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
