"""The small file `FILE` of a trained model, for runs that train it further.

The epsilon of such a run covers its own records and steps alone.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.config.flags import ABOUT_TRAINING_DATA, TRAINED_BASE, Flag, Stored, flag, has, sentences
from dpft.privacy.guarantee import Guarantee

FILE = "dpft.json"


def base_model(path: str) -> str:
    """Return a model's name on the hub, or the last component of its folder."""
    folder = Path(path).expanduser()
    return folder.resolve().name if folder.is_absolute() or folder.is_dir() else path


def first_weights(record: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return name and SHA-256 of a run's first weights; empty where its record lacks either."""
    model = record.get("model") or {}
    name, digest = model.get("base_model"), model.get("weights_sha256")
    return frozenset({(base_model(str(name)), str(digest))} if name and digest else ())


def ambiguous(weights: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names that are of more than one file of weights, by name and SHA-256."""
    digests: defaultdict[str, set[str]] = defaultdict(set)
    for name, digest in weights:
        digests[name].add(digest)
    return sorted(name for name, different in digests.items() if len(different) > 1)


def lineage_of(record: Mapping[str, Any]) -> str:
    """Return the content of `FILE` for the weights of a run.

    Flags of the base stay; one is added that names the run's data and guarantee.
    """
    flags: list[Stored] = record.get("flags", [])
    base = record.get("model", {}).get("flags", flags)
    data = [x for x in flags if x not in base and x["flag"] in ABOUT_TRAINING_DATA]
    trained = trained_on(record["dataset"]["task"], Guarantee.of_record(record), data)
    return written([*base, *trained])


def written(flags: Sequence[Stored]) -> str:
    """Return the content of `FILE`."""
    return json.dumps({"flags": [*flags]}, indent=2) + "\n"


def read_lineage(file: Path | None) -> tuple[Stored, ...]:
    """Return the flags in `FILE` of a model, which may have none."""
    try:
        flags = json.loads(file.read_text(encoding="utf-8"))["flags"] if file else ()
        sentences(flags)
        return tuple(flags)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return (flag(Flag.LINEAGE_DAMAGED),)


def trained_on(data: str, guarantee: Guarantee, flags: Sequence[Stored] = ()) -> list[Stored]:
    """Return the flag of weights that were trained on ``data``; none where nothing was released."""
    if guarantee.kind == "nothing released":
        return []
    statement = guarantee.statement if guarantee.private else None
    voided = [*guarantee.voided_by]
    known = {"data": data, "flags": [*flags], "statement": statement, "voided_by": voided}
    return [flag(Flag.TRAINED_BEFORE, **known)]


def lineage_caveats(flags: Iterable[Stored]) -> list[str]:
    """Return what a guarantee must say of a base that was trained before."""
    if not has(flags, *TRAINED_BASE):
        return []
    return [
        "the base model was trained before, on data that this guarantee does not cover; what it "
        "learned of a record there, this run's epsilon does not bound: for records that both were "
        "trained on the two costs add up, and if the first had no privacy there is none"
    ]
