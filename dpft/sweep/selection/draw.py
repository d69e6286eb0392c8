"""The folder of a private selection: what is chosen from, the secret key, and what it draws."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.config.overrides import setting_of
from dpft.config.schema import SERVICES, Run
from dpft.privacy import keys
from dpft.runs.atomic import owners_folder, parse_json, write_atomic
from dpft.runs.folders import DESCRIPTION, PRIVATE, SELECTION_KEY
from dpft.runs.identity import differences
from dpft.runs.lock import DirectoryLock
from dpft.sweep.points import SweepPlan, SweepPoint
from dpft.sweep.selection.trials import Trials

_KEY_BYTES = 32
_PRICE_ADDS = "or give another --name, whose price adds to what was spent here"


class Selection:
    """``runs_dir/selections/NAME``: what was chosen at the top, all else under ``private/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.description = path / DESCRIPTION  # what is chosen from, and how; public
        self.chosen = path / "chosen"  # the best run; its record states the whole price
        # The key, the trials, their number: whoever publishes these has published all of them.
        self.private = path / PRIVATE
        self.trials = self.private / "trials"  # where the trials run

    def lock(self) -> DirectoryLock:
        """Be the only process that makes this selection; the lock's time is secret, too.

        Raises:
            RunLockedError: another one does.
        """
        owners_folder(self.private)
        return DirectoryLock.acquire(self.private)

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
            ConfigError: if it is damaged, or gone from a selection that has begun: another one
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
            other records than the first; for candidates that a sweeper chooses by scores.
    """
    if plan.points is None:
        raise ConfigError("a sweeper that chooses by scores is no private selection; give values")
    for point, run in zip(plan.points, plan.runs, strict=True):
        wrong = None
        others = differences(_common(plan.runs[0]), _common(run))
        if not run.clip.private or run.privacy.sampling == "shuffle":
            wrong = "expected private runs with Poisson sampling, on whose price this one rests"
        elif run.privacy.noise_seed is not None:
            wrong = (
                "with privacy.noise_seed all trials would draw the same noise; expected noise of "
                "its own for each: leave it out"
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
        # A seed of its own makes it a run of its own, with noise of its own.
        lines.append((*words, f"seed={int(generator.integers(2**31))}"))
    return lines
