"""Private selection: the best of a random number of private runs, at little more than one's price.

Papernot & Steinke (2022, arXiv:2110.03620). Their theorem asks that the number of runs is drawn
once, from a secret key, and stays secret; that each run draws its settings at random from the
candidates, and separate noise; and that only the best is released.
"""

import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpft.config.errors import ConfigError, RunError
from dpft.config.overrides import setting_of
from dpft.config.schema import SERVICES, Audit, Run
from dpft.privacy import keys
from dpft.privacy.accounting import RDPCurve, run_curve
from dpft.privacy.guarantee import Guarantee, claim, made, own_caveats
from dpft.report.card import write_card, write_lineage
from dpft.runs.atomic import fsync, fsync_tree, owners_folder, parse_json, write_atomic
from dpft.runs.directory import DirectoryLock
from dpft.runs.folders import (
    DESCRIPTION,
    DONE,
    PRIVATE,
    SELECTION_KEY,
    damages,
    marked,
    read_marker,
    stored_config,
)
from dpft.runs.identity import differences
from dpft.runs.ledger import read_ledger
from dpft.runs.record import read_record
from dpft.sweep.points import SweepPlan, SweepPoint
from dpft.tasks.scores import score

_KEY_BYTES = 32
_COPIED = ("identity.json", "model", "generations")
_PRICE_ADDS = "or give another --name, whose price adds to what was spent here"


@dataclass(frozen=True)
class Trials:
    """The distribution of the number of runs ``K``: geometric, with ``P(K = 1) = 1 / mean``.

    Liu & Talwar (2019) showed it for a geometric number; the price in Renyi DP is that of Papernot
    & Steinke (2022, arXiv:2110.03620), Theorem 2 with ``eta = 1``.

    Raises:
        ValueError: for a mean below 1, or one that is too large to run.
    """

    mean: float

    def __post_init__(self) -> None:
        if not 1 <= self.mean < 1e7:
            raise ValueError(f"got a mean of {self.mean} trials; expected at least 1")

    def draw(self, key: bytes) -> int:
        """Draw ``K`` from a secret key: who knew it would know more than was released."""
        if self.mean == 1:
            return 1
        u = (int.from_bytes(keys.derive(key, "trials")[:8], "big") >> 11) * 2.0**-53
        return 1 + math.floor(math.log1p(-u) / math.log1p(-1 / self.mean))

    def cost(self, run: RDPCurve) -> RDPCurve:
        """Return the Renyi DP of the whole selection; ``run``: a bound for every candidate's run.

        Guarantee: the released best run has this Renyi DP if each run has ``run`` and uses
        separate randomness, candidates are drawn independently of the data, and neither ``K`` nor
        any other run is released. Every order of ``run`` proves one term, so the least is proven.
        """
        orders, total = run.orders, run.rdp.copy()  # of one run: nothing is selected
        if self.mean > 1:
            log_mean = math.log(self.mean)
            extra = 2 * ((1 - 1 / orders) * run.rdp + log_mean / orders).min()
            total += extra + log_mean / (orders - 1)
        # Renyi divergence never falls as its order grows, so higher orders bound lower ones.
        downwards = np.argsort(orders)[::-1]
        total[downwards] = np.minimum.accumulate(total[downwards])
        return RDPCurve(orders, total)


class Selection:
    """``runs_dir/selections/NAME``: what was chosen at the top, all else under ``private/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / DESCRIPTION  # what is chosen from, and how; public
        self.chosen = path / "chosen"  # the best run; its record states the whole price
        # The key, the trials, their number: a reader of one of these knows all of them.
        self.private = path / PRIVATE
        self.trials = self.private / "trials"  # where the trials run

    def lock(self) -> DirectoryLock:
        """Be the only process that makes this selection; the lock's time is secret, too.

        Raises:
            RunLockedError: another one does.
        """
        owners_folder(self.private)
        return DirectoryLock(self.private)

    def describe(self, points: Sequence[SweepPoint], trials: Trials, metric: str) -> None:
        """Write what is chosen from, and make the key, before anything runs.

        Raises:
            ConfigError: the folder holds another selection, or one whose description is gone.
        """
        content = {
            "candidates": [list(point.overrides) for point in points],
            "hashes": [point.digest for point in points],
            "metric": metric,
            **asdict(trials),
        }
        if not self.description.exists():
            if self.trials.exists() or self.chosen.exists():  # another could be described instead
                raise ConfigError(
                    f"{self.description} is gone, and with it what was drawn from; expected it "
                    f"next to the trials: put it back, {_PRICE_ADDS}"
                )
            # Before the description: where that is and the key is not, a key was lost.
            self.key()
            write_atomic(self.description, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
            return
        try:
            before = parse_json(self.description.read_bytes())
        except ValueError as error:
            raise ConfigError(
                f"{self.description} is damaged ({error}); put it back, {_PRICE_ADDS}"
            ) from error
        if before != content:
            raise ConfigError(
                f"{self.path} holds another selection; give another --name. Candidates and "
                "distribution must not change once the number of trials is drawn"
            )

    def key(self) -> bytes:
        """Return the secret that the number of trials and their settings are drawn from.

        Raises:
            ConfigError: if it is damaged, or gone from a selection that was started: another one
                would be another draw.
        """
        file = self.private / SELECTION_KEY
        if not file.exists():
            if any(path.exists() for path in (self.description, self.trials, self.chosen)):
                raise ConfigError(
                    f"{file} is gone, and a new key would draw again: that is another selection, "
                    f"which spends once more. Put the key back, {_PRICE_ADDS}"
                )
            owners_folder(self.private)
            write_atomic(file, secrets.token_hex(_KEY_BYTES) + "\n", mode=0o600)
        try:
            key = bytes.fromhex(file.read_text().strip())
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"{file} is damaged; put it back, {_PRICE_ADDS}")
        return key


def check(plan: SweepPlan) -> None:
    """Refuse what no price holds for, before anything runs.

    Raises:
        ConfigError: for a candidate without privacy, with shuffled batches, with a folder or noise
            that several trials would share, with a tracker that shows trials to others, or on
            other records than the first.
    """
    for point, run in zip(plan.points, plan.runs, strict=True):
        wrong = None
        others = differences(_common(plan.runs[0]), _common(run))
        if not run.clip.private or run.privacy.sampling == "shuffle":
            wrong = "expected private runs with Poisson sampling, on whose price this one rests"
        elif run.privacy.noise_seed is not None:
            wrong = (
                "with privacy.noise_seed all trials would draw the same noise; expected "
                "separate noise for each: leave it out"
            )
        elif run.track.name in SERVICES:
            wrong = (
                f"others may read what track={run.track.name} shows, and how many trials there "
                "are is secret; expected track=none, csv or tensorboard, which stay with the trials"
            )
        elif run.name is not None:
            wrong = "trials have folders of their own: leave out name=..., and type --name NAME"
        elif others:
            wrong = (
                f"differs from the first candidate in {'; '.join(others)}. Expected the same "
                "records for all, since the price rests on how many there are: type one value for "
                "each setting of task and audit, and for decode.split"
            )
        if wrong:
            raise ConfigError(f"{' '.join(point.overrides) or 'the defaults'}: {wrong}")


def _common(run: Run) -> dict[str, Any]:
    """Return what decides which records are trained on, how many they are, and which decide."""
    decode = {"split": run.decode.split}
    return {"task": dict(run.task), "audit": asdict(run.audit), "decode": decode}


def draw(key: bytes, points: Sequence[SweepPoint], trials: Trials) -> list[tuple[str, ...]]:
    """Draw the overrides of each trial: a candidate and a seed, independently of all others."""
    lines = []
    for trial in range(trials.draw(key)):
        generator = keys.generator(key, "trial", trial)
        point = points[int(generator.integers(len(points)))]
        words = [w for w in point.overrides if setting_of(w) not in ("seed", "runs_dir")]
        # A separate seed makes it another run, with other noise.
        lines.append((*words, f"seed={int(generator.integers(2**31))}"))
    return lines


# Of the trial, next to its record: what the verbs that use a trained run look for and use.
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


def release(selection: Selection, trial: Path, chosen: Mapping[str, Any]) -> None:
    """Copy what may be released of the best trial, whose record is as `priced` returns it.

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
