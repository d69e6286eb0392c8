"""Special facts about a run or a model, as data, and the sentences that are made from them.

A record stores a list of flags: mappings such as ``{"flag": "limited_train", "limit": 200}``.
Decisions ask for a `Flag`; readers are shown `sentences`. No code parses a sentence. Imports
nothing heavy, since tables and reports need it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Self

Stored = Mapping[str, Any]
"""A flag with its parameters, as records have it."""


class Flag(StrEnum):
    """A special fact: its stored name, and its sentence with parameters in braces."""

    template: str

    def __new__(cls, value: str, template: str = "") -> Self:
        """Give a member its sentence."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.template = template
        return member

    # The data.
    SAMPLE_DATA = "sample_data", "generated sample data"
    SYNTHETIC_DATA = "synthetic_data", "synthetic training records"
    LIMITED_TRAIN = "limited_train", "first {limit} training records only"
    TRAIN_SIZE = (
        "train_size",
        "{size:,} training records, where the published set has {published:,}",
    )
    TRAINED_ON_DEV = "trained_on_dev", "trained on the dev split"
    LIMITED_EVAL = "limited_eval", "first {limit} evaluation instances only"
    EVAL_SIZE = (
        "eval_size",
        "{instances:,} scored instances of {split}, where the published split has {sizes}",
    )
    HELD_OUT = (
        "held_out",
        "{split} split: about {share:.3g} of the {noun}s in the training data, held out",
    )
    SPLIT_BY_PERSONA = (
        "split_by_persona",
        "validation file split by persona, about {train:g}/{dev:g}",
    )
    CLASSES_FROM_DATA = (
        "classes_from_data",
        "class names taken from the training data, outside the guarantee",
    )
    OTHER_FILES = (
        "other_files",
        "images from other files than the published ones (checksums differ)",
    )
    LOSSY_COPIES = "lossy_copies", "lossy JPEG copies of the published images"
    CANARIES = "canaries", "{count} canaries, each in or out by a coin, for an audit"
    CANARY_TEXTS = "canary_texts", "{count} canary texts in the training data, {times} each"
    # The model.
    BUNDLED_MODEL = "bundled_model", "bundled {name} model"
    STAND_IN_MODEL = "stand_in_model", "random stand-in model"
    QUANTISED_WEIGHTS = "quantised_weights", "weights from a {bits}-bit file"
    RANDOM_WEIGHTS = "random_weights", "random initialisation"
    PRETRAINED_HEAD = "pretrained_head", "head pretrained on these classes"
    TRAINED_BEFORE = "trained_before", "base trained before on {data_in_words}{guaranteed}"
    TRAINED_ON_UNKNOWN = (
        "trained_on_unknown",
        "base trained before: its adapter is not a new one, and its training data is unknown",
    )
    LINEAGE_DAMAGED = (
        "lineage_damaged",
        "base trained before on unknown data: its dpft.json is damaged",
    )
    # Text of another program, such as a note of a model's publisher.
    NOTE = "note", "{text}"


ABOUT_TRAINING_DATA = frozenset(
    {
        Flag.SAMPLE_DATA,
        Flag.SYNTHETIC_DATA,
        Flag.LIMITED_TRAIN,
        Flag.TRAIN_SIZE,
        Flag.TRAINED_ON_DEV,
    }
)
"""Flags that say what a run's training records were."""

TRAINED_BASE = (Flag.TRAINED_BEFORE, Flag.TRAINED_ON_UNKNOWN, Flag.LINEAGE_DAMAGED)
"""Flags of a run whose base model another run has trained."""

_VOIDS = {
    "shuffled": "not proven, since batches were shuffled",
    "known seed": "void for those who know the seed of its noise",
    "refuted": "REFUTED BY ITS AUDIT",
}


def flag(kind: Flag, **parameters: Any) -> Stored:
    """Return a flag as records store it."""
    return {"flag": kind.value, **parameters}


def has(flags: Iterable[Stored], *kinds: Flag) -> bool:
    """Return whether one of the flags is of one of the kinds."""
    return any(stored["flag"] in kinds for stored in flags)


def sentences(flags: Iterable[Stored] | None) -> list[str]:
    """Return what readers are shown of flags, in their order; None counts as no flags."""
    return [sentence(stored) for stored in flags or ()]


def sentence(stored: Stored) -> str:
    """Return what readers are shown of one flag.

    Raises:
        ValueError: there is no such flag.
        KeyError: it lacks a parameter.
    """
    kind, values = Flag(stored["flag"]), dict(stored)
    match kind:
        case Flag.EVAL_SIZE:
            values["sizes"] = " or ".join(f"{size:,}" for size in stored["published"])
        case Flag.CANARY_TEXTS:
            times = stored["repetitions"]
            values["times"] = "once" if times == 1 else f"{times} times"
        case Flag.TRAINED_BEFORE:
            special = f" ({'; '.join(sentences(stored['flags']))})" if stored["flags"] else ""
            void = [text for reason, text in _VOIDS.items() if reason in stored["voided_by"]]
            given = stored["statement"]
            values["data_in_words"] = stored["data"] + special
            values["guaranteed"] = f": {'; '.join([given, *void])}" if given else " without privacy"
    return kind.template.format_map(values)
