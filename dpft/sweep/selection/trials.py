"""A private selection: what is chosen from, the secret key, what it draws, and what that costs."""

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpft.config.errors import ConfigError
from dpft.config.overrides import setting_of
from dpft.config.schema import SERVICES, Run
from dpft.privacy import keys
from dpft.privacy.accounting.rdp import RDPCurve
from dpft.runs.atomic import owners_folder, parse_json, write_atomic
from dpft.runs.directory import DirectoryLock
from dpft.runs.folders import DESCRIPTION, PRIVATE, SELECTION_KEY
from dpft.runs.identity import differences
from dpft.sweep.points import SweepPlan, SweepPoint

_KEY_BYTES = 32
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
