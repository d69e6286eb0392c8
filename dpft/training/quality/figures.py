"""The figures of synthetic records, and which of them the guarantee of the records covers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from dpft.training.quality.distance import MOST, Vectors, mmd
from dpft.training.quality.words import distinct, found_in, words

Coverage = Literal["covered", "public", "held-out", "training"]
"""What a number was computed from, beside the synthetic records.

``covered``: nothing, so that it has their guarantee. ``public``: records that anyone may have: the
same. ``held-out``: real records that were not trained on, as they are: no guarantee covers those.
``training``: the training records without noise: never to be published.
"""
OVERLAP = 8


@dataclass(frozen=True)
class QualityNumber:
    """A number of the synthetic records, and the same of something real to read it beside.

    Attributes:
        name: in words.
        synthetic: None where there is nothing to compute it from.
        covered: by what the first number is covered.
        real: the number to compare with; None: there is none.
        real_is: what that is a number of.
        real_covered: by what it is covered; None: there is none.
    """

    name: str
    synthetic: float | None
    covered: Coverage
    real: float | None = None
    real_is: str = ""
    real_covered: Coverage | None = None


def shapes(
    synthetic: Sequence[str], real: Sequence[str], real_covered: Coverage
) -> list[QualityNumber]:
    """Lengths and variety; of the real texts as many are taken, since variety falls with them.

    How many records repeat another is told of all synthetic ones too, whatever real ones there are.
    """
    ours = [words(text) for text in synthetic]
    theirs = [words(text) for text in chosen(real, len(synthetic))]
    size = min(len(ours), len(theirs)) or len(ours)
    few = [words(text) for text in chosen(synthetic, size)]
    said = f"{len(theirs):,} held-out records"

    def both(
        name: str, number: Callable[[list[list[str]]], float | None], equal: bool
    ) -> QualityNumber:
        own = number(few if equal else ours)
        if not theirs:
            return QualityNumber(name, own, "covered")
        return QualityNumber(name, own, "covered", number(theirs), said, real_covered)

    repeat = "records that repeat another"
    whole = [QualityNumber(repeat, _repeated(ours), "covered")] if size < len(ours) else []
    return [
        both("words in a record, mean", lambda t: fmean(map(len, t)), False),
        both("words in a record, median", lambda t: float(median(map(len, t))), False),
        both("different words among all (distinct-1)", lambda t: distinct(t, 1), True),
        both("different word pairs (distinct-2)", lambda t: distinct(t, 2), True),
        *whole,
        both(f"{repeat}, of {size:,} each" if whole else repeat, _repeated, True),
    ]


def nearness(
    synthetic: Sequence[str],
    real: Sequence[str],
    encode: Callable[[Sequence[str]], Vectors],
    covered: Coverage,
) -> QualityNumber:
    """Distance of the texts' vectors; beside it that of two halves of the real ones.

    Args:
        synthetic: two at least.
        real: four at least.
        encode: see `encoder`.
        covered: by what the real records are.
    """
    # Shuffled, since a file that is sorted would make its own halves look far apart.
    theirs = encode(chosen(random.Random("dpft halves").sample(list(real), len(real)), MOST))
    half = len(theirs) // 2
    return QualityNumber(
        "distance of meaning (MMD, 0: none)",
        mmd(encode(chosen(synthetic, MOST)), theirs),
        covered,
        mmd(theirs[:half], theirs[half:]),
        "one half of the held-out records from the other",
        covered,
    )


def overlaps(
    synthetic: Sequence[str], held_out: Sequence[str], training: Iterable[str], n: int = OVERLAP
) -> list[QualityNumber]:
    """What of the texts stands in training records; beside it what of held-out records does.

    Texts of one kind share phrases: only what exceeds the second number hints at copies.
    """
    asked = [synthetic, held_out] if held_out else [synthetic]
    groups = [[words(text) for text in texts] for texts in asked]
    ours, *rest = found_in(groups, map(words, training), n)
    theirs: tuple[float | None, ...] = rest[0] if rest else (None, None, None)
    names = (
        f"runs of {n} words that occur in training",
        "records that hold such a run",
        "records that are a training record",
    )
    said, of = ("held-out records", "training") if held_out else ("", None)
    return [
        QualityNumber(name, own, "training", other, said, of)  # type: ignore[arg-type]
        for name, own, other in zip(names, ours, theirs, strict=True)
    ]


def downstream(
    metrics: Mapping[str, float | None],
    beside: Mapping[str, float | None],
    trained: str,
    split: str,
    covered: Coverage,
    real_covered: Coverage,
) -> list[QualityNumber]:
    """Scores on real records of a model that was trained on synthetic ones, beside another's.

    Args:
        metrics: of the first.
        beside: of the second.
        trained: what the second was trained on, in words.
        split: of the real records.
        covered: by what those are.
        real_covered: by what the second model's scores are.
    """
    return [
        QualityNumber(
            f"{name} on {split}, trained on them",
            value,
            covered,
            beside.get(name),
            trained if name in beside else "",
            real_covered if name in beside else None,
        )
        for name, value in metrics.items()
    ]


def chosen(texts: Sequence[str], count: int) -> list[str]:
    """At most so many texts, drawn without replacement and always the same."""
    if len(texts) <= count:
        return list(texts)
    return random.Random("dpft quality").sample(list(texts), count)


def _repeated(texts: list[list[str]]) -> float:
    return 1 - len({tuple(text) for text in texts}) / len(texts)
