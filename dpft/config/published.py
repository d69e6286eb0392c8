"""How many instances the published evaluation splits have: what a score must be of to be theirs.

Counts are of questions, as `docs/reference/tasks` gives them: meaning representations of E2E,
triple sets of DART. MNLI's two parts are one split; a copy may hold the matched one alone.
"""

from collections.abc import Mapping
from typing import Any

from dpft.config.flags import Flag, Stored, flag

_PUBLISHED: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("e2e", "dev"): (547,),
    ("e2e", "test"): (630,),
    ("dart", "dev"): (2768,),
    ("dart", "test"): (5097,),
    ("sst2", "dev"): (872,),
    ("qnli", "dev"): (5463,),
    ("qqp", "dev"): (40430,),
    ("mnli", "dev"): (9815, 9815 + 9832),
    ("personachat", "dev"): (7801,),
    ("samsum", "dev"): (818,),
    ("samsum", "test"): (819,),
    ("cifar10", "test"): (10000,),
    ("cifar100", "test"): (10000,),
    ("svhn", "test"): (26032,),
    ("gtsrb", "test"): (12630,),
    ("food101", "test"): (25250,),
}
# Tasks with a data set of their own; all others read files that the user names.
PUBLISHED_TASKS = frozenset(task for task, _ in _PUBLISHED)


def is_other_size(count: int, published: int) -> bool:
    """Return whether so many records are not the published set.

    Copies of one differ by some: empty or damaged ones, planted canaries.
    """
    return abs(count - published) > 0.02 * published


def is_part(record: Mapping[str, Any], split: str) -> bool:
    """Return whether a record's scores of a split are of other instances than the published ones.

    By their number: over 2% more or fewer. False where no size is known.
    """
    examples = ((record.get("scores") or {}).get(split) or {}).get("examples")
    sizes = _PUBLISHED.get((record["config"]["task"]["name"], split), ())
    if examples is None or not sizes:
        return False
    return all(is_other_size(examples, size) for size in sizes)


def with_part_flags(record: Mapping[str, Any]) -> list[Stored]:
    """Return a record's flags, with one for each split that `is_part`, unless another says so."""
    flags = [stored for stored in record.get("flags", []) if stored["flag"] != Flag.EVAL_SIZE]
    task, source = record["config"]["task"], record["dataset"]["source"]
    if task.get("limit_eval") is not None or source == "sample":
        return flags
    return flags + [
        flag(
            Flag.EVAL_SIZE,
            instances=scores["examples"],
            split=split,
            published=list(_PUBLISHED[task["name"], split]),
        )
        for split, scores in record.get("scores", {}).items()
        if is_part(record, split)
    ]
