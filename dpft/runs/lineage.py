"""What a trained model carries along for runs that train it further: the small file `FILE`.

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


def begun_with(record: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Return name and SHA-256 of a run's first weights; empty where its record lacks either."""
    model = record.get("model") or {}
    name, digest = model.get("base_model"), model.get("weights_sha256")
    return frozenset({(base_model(str(name)), str(digest))} if name and digest else ())


def names_apart(begun: Iterable[tuple[str, str]]) -> list[str]:
    """Return the names that stand for more than one file of weights."""
    digests: defaultdict[str, set[str]] = defaultdict(set)
    for name, digest in begun:
        digests[name].add(digest)
    return sorted(name for name, different in digests.items() if len(different) > 1)


def descent(record: Mapping[str, Any]) -> str:
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
    return json.dumps(flagged(flags), indent=2) + "\n"


def flagged(flags: Sequence[Stored]) -> dict[str, list[Stored]]:
    """Return what `ancestry` reads of a file; a checkpoint's manifest has more."""
    return {"flags": [*flags]}


def ancestry(file: Path | None) -> tuple[Stored, ...]:
    """Return the flags in `FILE` of a model, which may have none."""
    if file is None:
        return ()
    try:
        flags = json.loads(file.read_text(encoding="utf-8"))["flags"]
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
    return [
        flag(
            Flag.TRAINED_BEFORE,
            data=data,
            flags=[*flags],
            statement=statement,
            voided_by=[*guarantee.voided_by],
        )
    ]


def ancestral_caveats(flags: Iterable[Stored]) -> list[str]:
    """Return what a guarantee must say of a base that was trained before."""
    if not has(flags, *TRAINED_BASE):
        return []
    return [
        "the base model was trained before, on data that this guarantee does not cover; what it "
        "learned of a record there, this run's epsilon does not bound: for records that both were "
        "trained on the two costs add up, and if the first had no privacy there is none"
    ]
