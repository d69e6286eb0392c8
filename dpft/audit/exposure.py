"""Checks of an audited run, the secrets that are planted in its data, and their exposure.

Exposure is measured as in appendix M of Li et al. 2022. A secret is a text of random words after a
prefix in the form of the data. Its *exposure* is ``-log2 P[nll of another text <= nll of the
secret]`` in bits, about 1 where nothing was learnt of it, and near ``log2(V^l)`` where it can be
read out of the model (Carlini et al. 2019). The probability is that of a skew-normal distribution
fitted to other texts, which are too many to rank.

``docs/how-to/audit.md`` explains what each kind of canaries can show and what it cannot.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpft.config.errors import ConfigError
from dpft.config.schema import Audit, Run
from dpft.privacy import keys
from dpft.tasks.objectives.objective import Instance
from dpft.tasks.objectives.record_types import Record, TextRecord

if TYPE_CHECKING:
    from dpft.tasks.task import Task


def check(run: Run, task: Task) -> None:
    """Raise ConfigError for an audit that means nothing for this run."""
    audit, noun = run.audit, task.unit_noun
    typed = f"audit.gradients={audit.gradients} audit.secrets={audit.secrets}"
    if audit.gradients and not run.clip.private:
        why = "clip=none, which guarantees nothing that could be refuted; type audit=none"
    elif audit.gradients and run.privacy.sampling != "poisson":
        why = (
            f"sampling={run.privacy.sampling}, which claims no epsilon that canaries could refute, "
            "or another one; type sampling=poisson"
        )
    elif audit.secrets and noun != "record":
        why = f"{noun}s as units of privacy: secrets are single records; type audit.secrets=0"
    elif audit.secrets and (task.needs.kind != "causal" or task.unconditional):
        why = (
            f"task={task.name}, which writes no text after another; expected a task such as e2e: "
            "type audit.secrets=0"
        )
    else:
        return
    raise ConfigError(f"got {typed} with {why}")


Array = npt.NDArray[np.float64]

WORDS = 10  # V, the words that secrets are made of
LENGTHS = (4, 5, 6)  # l, words of a secret; five on average
_WORD = re.compile(r"[a-z]{3,12}")


@dataclass(frozen=True)
class Planted:
    """Secrets in the training data, and the words that they are made of."""

    secrets: Sequence[TextRecord]
    words: Sequence[str]
    audit: Audit
    seed: int  # of the texts that they are compared with

    @property
    def records(self) -> list[Record]:
        """Each secret, as often as it is repeated."""
        return [secret for secret in self.secrets for _ in range(self.audit.repetitions)]

    def scores(self, objective: Any, model: Any, batch_size: int) -> dict[str, Any]:
        """Return the record's scores of the split ``canaries``."""
        generator = keys.generator(keys.public_key(self.seed), "audit", "candidates")
        exposures = []
        for secret in self.secrets:
            size = (self.audit.candidates, len(secret.target.split()))
            drawn = generator.integers(len(self.words), size=size).tolist()
            others = [
                TextRecord(secret.segments, " ".join(self.words[i] for i in row)) for row in drawn
            ]
            instances = [Instance(text, (text.target,)) for text in (secret, *others)]
            likelihoods = objective.likelihoods(model, instances, batch_size)
            own, *rest = (total for total, _ in likelihoods)
            nll = np.array(rest)
            exposures.append((exposure(own, nll), exposure_by_rank(own, nll)))
        return section(exposures, self.audit.repetitions)


def make_secrets(tokenizer: Any, count: int, seed: int) -> tuple[list[TextRecord], tuple[str, ...]]:
    """Return secrets and their words; raise ConfigError if a tokenizer has too few whole words."""
    generator = keys.generator(keys.public_key(seed), "audit", "secrets")
    whole = []  # words that are one token after a space
    for index in range(len(tokenizer)):
        word = str(tokenizer.decode([index])).strip()
        alone = _WORD.fullmatch(word) and tokenizer.encode(f" {word}", add_special_tokens=False)
        if alone == [index]:
            whole.append(word)
    if len(whole) < WORDS:
        raise ConfigError(
            f"audit.secrets={count}, but the tokenizer has {len(whole)} whole words; expected at "
            f"least {WORDS}: type audit.secrets=0"
        )
    chosen = generator.choice(len(whole), WORDS, replace=False).tolist()
    words = tuple(whole[i] for i in chosen)

    def draw(length: int) -> tuple[str, ...]:
        return tuple(words[i] for i in generator.integers(WORDS, size=length).tolist())

    secrets = []
    for number in range(count):
        name, kind, area = draw(3)
        prefix = f"name : {name} | Type : {kind} | area : {area}"
        secrets.append(TextRecord((prefix,), " ".join(draw(LENGTHS[number % len(LENGTHS)]))))
    return secrets, words


def exposure(secret: float, others: Array) -> float:
    """Return ``-log2 P[X <= secret]`` with a skew-normal ``X`` fitted to ``others``.

    Infinite where no fit reaches the secret, not a number where the other texts do not differ.
    """
    from scipy import stats

    spread = float(others.std())
    if spread == 0 or not math.isfinite(spread) or not math.isfinite(secret):
        return math.nan
    shape, place, scale = stats.skewnorm.fit(others)
    # In logarithms, as far out as no cumulative distribution function of doubles reaches.
    below = np.linspace(min(secret, place) - 12.0 * scale, secret, 8001)
    density = stats.skewnorm.logpdf(below, shape, place, scale)
    peak = float(density.max())
    if not math.isfinite(peak):
        return math.inf
    inside = float(np.trapezoid(np.exp(density - peak), below))
    return max(0.0, -(peak + math.log(inside)) / math.log(2))


def exposure_by_rank(secret: float, others: Array) -> float:
    """Return ``-log2`` of the secret's rank among all texts, at most ``log2(n + 1)``."""
    return -math.log2((1 + int((others <= secret).sum())) / (len(others) + 1))


def section(exposures: Sequence[tuple[float, float]], repetitions: int) -> dict[str, Any]:
    """Return the record's section of exposures by the fit and by rank, in bits."""
    finite = [fitted for fitted, _ in exposures if math.isfinite(fitted)]
    return {
        "metrics": {
            "exposure": float(np.mean(finite)) if finite else None,
            "exposure deviation": float(np.std(finite, ddof=1)) if len(finite) > 1 else None,
            "exposure max": max(finite) if finite else None,
            "exposure by rank": float(np.mean([by_rank for _, by_rank in exposures])),
            "exposures without a fit": len(exposures) - len(finite),
        },
        "examples": len(exposures),
        "signature": f"exposure|skew-normal|words:{WORDS}|length:5|repetitions:{repetitions}",
    }
