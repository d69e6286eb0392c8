"""Private selection: the best of a random number of private runs, at little more than one's price.

Papernot & Steinke (2022); the price is worked out in `dpft.privacy.accounting.selection`. What the
theorem asks for is what this folder sees to: the number of runs is drawn once, from a secret key,
and stays secret; each run draws its settings at random from the candidates, and noise of its own;
only the best is released.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config import Run
from dpft.errors import ConfigError
from dpft.privacy import accounting, keys
from dpft.privacy.accounting import Trials
from dpft.runs.atomic import write_atomic
from dpft.runs.card import model_card
from dpft.runs.identity import config_hash
from dpft.runs.shown import delta as shown_delta
from dpft.runs.shown import up

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


@dataclass(frozen=True)
class Selection:
    """``runs_dir/selections/NAME``: what was chosen at the top, all else under ``private/``."""

    path: Path

    @property
    def description(self) -> Path:
        """What is chosen from, and how; public."""
        return self.path / "selection.json"

    @property
    def chosen(self) -> Path:
        """The best run: model, card, record and generations; its record states the whole price."""
        return self.path / "chosen"

    @property
    def private(self) -> Path:
        """The key, the trials, their number: whoever publishes these has published all of them."""
        return self.path / "private"

    @property
    def trials(self) -> Path:
        """Where the trials run."""
        return self.private / "trials"

    def describe(
        self, candidates: Sequence[Candidate], trials: Trials, metric: str, lowest: bool
    ) -> None:
        """Write what is chosen from, before anything runs.

        Raises:
            ConfigError: the folder holds another selection.
        """
        content = {
            "candidates": [list(candidate.overrides) for candidate in candidates],
            "hashes": [config_hash(candidate.run.identity()) for candidate in candidates],
            "metric": metric,
            "best": "lowest" if lowest else "highest",
            "mean": trials.mean,
            "shape": "inf" if trials.poisson else trials.shape,
        }
        if self.description.exists():
            try:
                before = json.loads(self.description.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ConfigError(
                    f"{self.description} is damaged ({error}); give --name"
                ) from error
            if before != content:
                raise ConfigError(
                    f"{self.path} holds another selection; give another --name. Candidates and "
                    "distribution must not change once the number of trials is drawn"
                )
            return
        self.private.mkdir(parents=True, exist_ok=True)
        write_atomic(self.description, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def key(self) -> bytes:
        """The secret that the number of trials and their settings are drawn from; made once.

        Raises:
            ConfigError: if it is there and damaged: another would be another draw.
        """
        file = self.private / "selection_key"
        if not file.exists():
            if self.trials.exists():
                raise ConfigError(
                    f"{file} is gone, and there are trials; a new key would draw again. Give "
                    "another --name, and count what was spent here as well"
                )
            self.private.mkdir(parents=True, exist_ok=True)
            write_atomic(file, secrets.token_hex(_KEY_BYTES) + "\n")
            file.chmod(0o600)
        try:
            key = bytes.fromhex(file.read_text().strip())
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise ConfigError(f"{file} is damaged; give another --name")
        return key


def draw(key: bytes, candidates: Sequence[Candidate], trials: Trials) -> list[tuple[str, ...]]:
    """The overrides of each trial: a candidate and a seed, drawn independently of all others.

    Args:
        key: secret.
        candidates: equally likely.
        trials: the distribution of their number.
    """
    count = trials.draw(key)
    lines = []
    for trial in range(count):
        generator = keys.generator(key, "trial", trial)
        candidate = candidates[int(generator.integers(len(candidates)))]
        words = [w for w in candidate.overrides if w.partition("=")[0] not in ("seed", "runs_dir")]
        # A seed of its own makes it a run of its own, with noise of its own.
        lines.append((*words, f"seed={int(generator.integers(2**31))}"))
    return lines


def price(mechanisms: Sequence[Any], trials: Trials) -> tuple[float, float, float]:
    """Epsilon of one run at most, epsilon of the whole, and the delta of both.

    Args:
        mechanisms: of all candidates, drawn or not.
        trials: the distribution of their number.
    """
    curves = [
        accounting.run_curve(
            sampling_rate=mechanism.sampling_rate,
            noise_multiplier=mechanism.total_noise_multiplier,
            steps=mechanism.steps,
        )
        for mechanism in mechanisms
    ]
    delta = min(mechanism.delta for mechanism in mechanisms)
    each = accounting.at_most(curves)
    return each.epsilon(1, delta), trials.cost(each).epsilon(1, delta), delta


def release(
    selection: Selection,
    trial: Path,
    record: Mapping[str, Any],
    *,
    metric: str,
    trials: Trials,
    candidates: int,
    epsilon: float,
    delta: float,
) -> dict[str, Any]:
    """Copy what may be released of the best trial, with the price of the selection.

    Returns:
        The record of the chosen run. Its guarantee is the selection's; the trial's own epsilons,
        by whichever accountant, hold no longer and are left out.
    """
    private = record["privacy"]
    unit = str(private["neighbouring"]).removeprefix("add or remove one ")
    many = "Poisson" if trials.poisson else f"truncated negative binomial, shape {trials.shape:g}"
    statement = (
        f"({up(epsilon)}, {shown_delta(delta)})-differential privacy by Renyi accounting, the "
        "choice of the best of a random number of runs included, for adding or removing one "
        f"{unit}; one {unit} is {private['unit']}"
    )
    caveat = (
        f"chosen by {metric} among {candidates} candidates: the number of runs was drawn ({many}, "
        f"mean {trials.mean:g}) and is secret, as are all other runs. Publishing any of them, or "
        "how many there were, voids the guarantee (Papernot & Steinke 2022)"
    )
    chosen = {
        **record,
        "privacy": {
            **private,
            "delta": delta,
            "epsilon": {"rdp": epsilon, "gdp_clt": None, "prv": None},
            "statement": statement,
            "caveats": [*private["caveats"], caveat],
        },
    }
    target = selection.chosen
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in ("model", "generations"):
        if (trial / name).is_dir():
            shutil.copytree(trial / name, fresh / name)
    (fresh / "record.json").write_text(
        json.dumps(chosen, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if (fresh / "model").is_dir():
        (fresh / "model" / "README.md").write_text(model_card(chosen), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return chosen
