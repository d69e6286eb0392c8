"""What a model that a run leaves says of itself to whoever trains it further.

The card is for people. This small file is for the next run, whose epsilon covers its own records
and steps alone, and whose numbers owe to the base what the base owed to others.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.privacy.guarantee import Guarantee

FILE = "dpft.json"
_MARK = "base trained before"
# Of weights that are not as they are made, and came without `FILE`.
UNTOLD = f"{_MARK}: its adapter is not a new one, and nothing tells on what data"
# Labels of a run that say what its training records were.
_DATA = re.compile(r"\btraining records|\btrained on|sample data")
_VOID = {
    "shuffled": "not proven, since batches were shuffled",
    "known seed": "void for whoever knows the seed of its noise",
    "refuted": "REFUTED BY ITS AUDIT",
}


def base_model(path: str) -> str:
    """A model's name on the hub, or the last component of its folder and no other folder."""
    folder = Path(path).expanduser()
    return folder.resolve().name if folder.is_absolute() or folder.is_dir() else path


def begun_with(record: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Name and SHA-256 of the weights that a run began with; empty where its record lacks either.

    Args:
        record: of the run, see `dpft.runs.RunRecord`.
    """
    model = record.get("model") or {}
    name, digest = model.get("base_model"), model.get("weights_sha256")
    return frozenset({(base_model(str(name)), str(digest))} if name and digest else ())


def names_apart(begun: Iterable[tuple[str, str]]) -> list[str]:
    """Names that stand for more than one file of weights: runs of both compare those, too."""
    digests: defaultdict[str, set[str]] = defaultdict(set)
    for name, digest in begun:
        digests[name].add(digest)
    return sorted(name for name, different in digests.items() if len(different) > 1)


def descent(record: Mapping[str, Any]) -> str:
    """What is put into `FILE` beside the weights of a run, for `ancestry` to read.

    Args:
        record: of the run, see `dpft.runs.RunRecord`.
    """
    return written([*_of_weights(record), *_trained(record)])


def written(labels: Sequence[str]) -> str:
    """The content of `FILE`."""
    return json.dumps(labelled(labels), indent=2) + "\n"


def labelled(labels: Sequence[str]) -> dict[str, list[str]]:
    """What of a file's content `ancestry` reads: a checkpoint's manifest has more."""
    return {"labels": [*labels]}


def ancestry(file: Path | None) -> tuple[str, ...]:
    """What every number of a model that goes on from this one must say; empty for other models.

    Args:
        file: `FILE` of the model; None: it has none.
    """
    if file is None:
        return ()
    try:
        labels = json.loads(file.read_text(encoding="utf-8"))["labels"]
        return tuple(str(label) for label in labels)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return (f"{_MARK} on data that its {FILE}, which is damaged, no longer tells",)


def _of_weights(record: Mapping[str, Any]) -> list[str]:
    """Labels that stay true of the weights, whatever they are trained or scored on next."""
    labels: list[str] = record.get("labels", [])
    return list(record.get("model", {}).get("labels", labels))


def _trained(record: Mapping[str, Any]) -> list[str]:
    """On what the run trained the weights, under which guarantee, and what voids that."""
    weights, task = _of_weights(record), record["dataset"]["task"]
    data = [x for x in record.get("labels", []) if x not in weights and _DATA.search(x)]
    named = task + (f" ({'; '.join(data)})" if data else "")
    return trained_on(named, Guarantee.of_record(record))


def trained_on(data: str, guarantee: Guarantee) -> list[str]:
    """The label of weights that were trained on data so named; none where nothing was released."""
    if guarantee.kind == "nothing released":
        return []
    on = f"{_MARK} on {data}"
    if not guarantee.private:
        return [f"{on} without privacy"]
    void = [text for reason, text in _VOID.items() if reason in guarantee.voided_by]
    return ["; ".join([f"{on}: {guarantee.statement}", *void])]


def is_trained_before(label: str) -> bool:
    """Whether a label says that a run's base was trained by another run."""
    return label.startswith(_MARK)


def ancestral_caveats(labels: tuple[str, ...]) -> list[str]:
    """What a guarantee must say of a base that was trained before."""
    if not any(map(is_trained_before, labels)):
        return []
    return [
        "the base model was trained before, on data that this guarantee does not cover; what it "
        "learned of a record there, this run's epsilon does not bound: for records that both were "
        "trained on the two costs add up, and if the first had no privacy there is none"
    ]
