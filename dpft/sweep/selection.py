"""Private selection: the best of a random number of private runs, at little more than one's price.

Papernot & Steinke (2022); the price is worked out in `dpft.privacy.accounting.selection`. What the
theorem asks for is what this folder sees to: the number of runs is drawn once, from a secret key,
and stays secret; each run draws its settings at random from the candidates, and noise of its own;
only the best is released, see `dpft.sweep.release`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError
from dpft.config.overrides import setting_of
from dpft.config.schema import SERVICES, Run
from dpft.privacy import accounting, keys
from dpft.privacy.accounting.selection import Trials, at_most
from dpft.runs.atomic import owners_folder, parse_json, write_atomic
from dpft.runs.folders import DESCRIPTION, PRIVATE, SELECTION_KEY
from dpft.runs.identity import config_hash, differences
from dpft.runs.lock import DirectoryLock

_KEY_BYTES = 32


@dataclass(frozen=True)
class Candidate:
    """Settings that a run may draw.

    Attributes:
        overrides: as typed.
        run: parsed.
    """

    overrides: tuple[str, ...]
    run: Run


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
        """Be the only process that makes this selection; when it began is nobody's to see.

        Raises:
            RunLockedError: another one does.
        """
        owners_folder(self.private)
        return DirectoryLock.acquire(self.private)

    def describe(
        self, candidates: Sequence[Candidate], trials: Trials, metric: str, lowest: bool
    ) -> None:
        """Write what is chosen from, and make the key, before anything runs.

        Raises:
            ConfigError: the folder holds another selection, or one whose description is gone.
        """
        content = {
            "candidates": [list(candidate.overrides) for candidate in candidates],
            "hashes": [config_hash(candidate.run.identity()) for candidate in candidates],
            **rule(metric, lowest, trials),
        }
        if self.description.exists():
            try:
                before = parse_json(self.description.read_bytes())
            except ValueError as error:
                raise ConfigError(
                    f"{self.description} is damaged ({error}); put it back, or give another "
                    "--name, whose price adds to what was spent here"
                ) from error
            if before != content:
                raise ConfigError(
                    f"{self.path} holds another selection; give another --name. Candidates and "
                    "distribution must not change once the number of trials is drawn"
                )
            return
        if self.trials.exists() or self.chosen.exists():  # others could be described in its place
            raise ConfigError(
                f"{self.description} is gone, and with it what was drawn from; expected it beside "
                "the trials: put it back, or give another --name, whose price adds to what was "
                f"spent here. What {self.path} holds is left as it is"
            )
        # Before the description: where that is and the key is not, a key was lost.
        self.key()
        write_atomic(self.description, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def key(self) -> bytes:
        """The secret that the number of trials and their settings are drawn from; made once.

        Raises:
            ConfigError: if it is damaged, or gone from a selection that has begun: another one
                would be another draw.
        """
        file = self.private / SELECTION_KEY
        if not file.exists():
            if any(path.exists() for path in (self.description, self.trials, self.chosen)):
                raise ConfigError(
                    f"{file} is gone, and a new key would draw again: that is another selection, "
                    "which spends once more. Put the key back, or give another --name, whose "
                    f"price adds to what was spent here. What {self.path} holds is left as it is"
                )
            owners_folder(self.private)
            write_atomic(file, secrets.token_hex(_KEY_BYTES) + "\n", mode=0o600)
        try:
            key = bytes.fromhex(file.read_text().strip())
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"{file} is damaged; give another --name")
        return key


def rule(metric: str, lowest: bool, trials: Trials) -> dict[str, Any]:
    """How is chosen, as JSON can hold it; ``float`` reads the shape back."""
    return {
        "metric": metric,
        "best": "lowest" if lowest else "highest",
        "mean": trials.mean,
        "shape": "inf" if trials.poisson else trials.shape,
    }


def check(candidates: Sequence[Candidate]) -> None:
    """Refuse what no price holds for, before anything runs.

    Raises:
        ConfigError: for a candidate without privacy, with shuffled batches, with a folder or noise
            that several trials would share, with a tracker that shows trials to others, or on
            other records than the first.
    """
    for candidate in candidates:
        run, typed = candidate.run, " ".join(candidate.overrides) or "the defaults"
        if not run.clip.private or run.privacy.sampling == "shuffle":
            raise ConfigError(
                f"{typed}: clip={run.clip.style} sampling={run.privacy.sampling}; expected private "
                "runs with Poisson sampling: the price rests on theirs"
            )
        if run.privacy.noise_seed is not None:
            raise ConfigError(
                f"{typed}: got privacy.noise_seed={run.privacy.noise_seed}, so that all trials "
                "would draw the same noise; expected noise of its own for each, on which the "
                "price rests: leave it out"
            )
        if run.track.name in SERVICES:
            raise ConfigError(
                f"{typed}: got track={run.track.name}, which others may read: how many trials "
                "there were, and what each scored, is secret, and the price rests on that; "
                "expected track=none, csv or tensorboard, which stay with the trials"
            )
        if run.name is not None:
            raise ConfigError("got name=...; trials have folders of their own: type --name NAME")
        others = differences(_common(candidates[0].run), _common(run))
        if others:
            raise ConfigError(
                f"{typed}: differs from the first candidate in {'; '.join(others)}. Expected the "
                "same records for all: the price rests on how many there are, and scores are "
                "compared. Type one value for each setting of task and audit, and for decode.split"
            )


def _common(run: Run) -> dict[str, Any]:
    """What decides which records are trained on, how many they are, and which decide."""
    decode = {"split": run.decode.split}
    return {"task": dict(run.task), "audit": asdict(run.audit), "decode": decode}


def draw(key: bytes, candidates: Sequence[Candidate], trials: Trials) -> list[tuple[str, ...]]:
    """The overrides of each trial: a candidate and a seed, drawn independently of all others.

    Args:
        key: secret.
        candidates: equally likely.
        trials: the distribution of their number.
    """
    lines = []
    for trial in range(trials.draw(key)):
        generator = keys.generator(key, "trial", trial)
        candidate = candidates[int(generator.integers(len(candidates)))]
        words = [w for w in candidate.overrides if setting_of(w) not in ("seed", "runs_dir")]
        # A seed of its own makes it a run of its own, with noise of its own.
        lines.append((*words, f"seed={int(generator.integers(2**31))}"))
    return lines


def spending(mechanisms: Sequence[Any]) -> list[dict[str, Any]]:
    """What decides how much each mechanism spends: arguments of `accounting.run_curve`, each once.

    Args:
        mechanisms: of all candidates, drawn or not.
    """
    spent = [{**mechanism.spent, "steps": mechanism.steps} for mechanism in mechanisms]
    return [one for place, one in enumerate(spent) if one not in spent[:place]]


def price(mechanisms: Sequence[Any], trials: Trials) -> tuple[float, float, float]:
    """Epsilon of one run at most, epsilon of the whole, and the delta of both.

    Args:
        mechanisms: of all candidates, drawn or not, over the same records.
        trials: the distribution of their number.
    """
    curves = [accounting.run_curve(**spent) for spent in spending(mechanisms)]
    delta = min(mechanism.delta for mechanism in mechanisms)
    each = at_most(curves)
    return each.epsilon(1, delta), trials.cost(each).epsilon(1, delta), delta
