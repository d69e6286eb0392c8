"""How many instances the published evaluation splits have: what a score must be of to be theirs.

Counts are of questions, as `docs/reference/tasks` gives them: meaning representations of E2E,
triple sets of DART. MNLI's two parts are one split; a copy may hold the matched one alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.config.checks import is_other_size

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


def is_part(record: Mapping[str, Any], split: str) -> bool:
    """Whether a record's scores of a split are of other instances than the published ones.

    By their number: over 2% more or fewer. False where no size is known.
    """
    examples = ((record.get("scores") or {}).get(split) or {}).get("examples")
    sizes = _PUBLISHED.get((str(record["config"]["task"]["name"]), split), ())
    if not isinstance(examples, int) or not sizes:
        return False
    return all(is_other_size(examples, size) for size in sizes)
