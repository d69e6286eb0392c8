"""What a record says of privacy, as training would leave it."""

from typing import Any

from dpft.privacy.guarantee import NONE


def example_guarantee(**changes: Any) -> dict[str, Any]:
    """The section ``privacy`` of a record."""
    return {
        "kind": "private",
        "noun": "record",
        "unit": "one meaning representation with one reference",
        "neighbouring": "add or remove one record",
        "steps_taken": 410,
        "delta": 8e-6,
        "epsilon": {
            "rdp": 2.99901,
            "gdp_clt": 2.7,
            "prv": {"lower": 2.6109, "estimate": 2.63, "upper": 2.6491},
        },
        "stated": 2.99901,
        "accountant": "rdp",
        "statement": "(3, 8e-06)-differential privacy by Renyi accounting",
        "strength": "reasonable",
        "meaning": "Nobody can tell.",
        "voided_by": [],
        "warnings": [],
        "caveats": ["Two earlier runs on the same data were set aside."],
        "selected": False,
        **changes,
    }


def without_privacy(**changes: Any) -> dict[str, Any]:
    """The same section of a run without noise."""
    return example_guarantee(
        kind="none",
        delta=None,
        epsilon=None,
        stated=None,
        accountant=None,
        statement=NONE,
        strength="none",
        meaning="",
        caveats=[],
        **changes,
    )
